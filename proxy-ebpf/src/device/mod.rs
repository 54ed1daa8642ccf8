//! Programs on network devices: clients elsewhere.
//!
//! A frontend is translated where the client's packet enters this node, and
//! translated back where the reply leaves towards that client: replies of local
//! backends at egress, those of remote ones, which came to an address of ours,
//! at ingress. "Not ours" is always TC_ACT_UNSPEC, so that other programs run.

mod answer;
mod begin;
mod client;
mod dsr;
mod errors;
mod flows;
mod follow;
mod forward;
mod fragments;
mod refuse;
mod route;
mod snat;
mod socket;

use crate::{
    maps::{self, Scratch, Work},
    packet::{Packet, parse},
};
use aya_ebpf::{
    bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC},
    programs::TcContext,
};
use core::hint::black_box;
use errors::Fate;
use flows::refusal;
use proxy_common::{Device, DropReason, decide::Refusal};

/// Not ours, or translated and the stack's to deliver.
const PASS: i32 = TC_ACT_UNSPEC;

/// `__sk_buff.pkt_type` of what is for this node alone (PACKET_HOST,
/// include/uapi/linux/if_packet.h).
const TO_THIS_NODE: u32 = 0;
/// The bits of a VLAN's tag that say which one.
const VLAN_ID: u32 = 0xfff;

/// A packet, and where it is met.
pub struct Arrival<'a> {
    pub ctx: &'a TcContext,
    pub packet: &'a Packet,
    /// Index of the device.
    pub index: u32,
    pub device: &'static Device,
    pub scratch: &'static mut Work,
}

impl Arrival<'_> {
    /// Makes the compiler forget what it knows of the packet. Else it goes on with
    /// one copy of the program for each kind of packet, and the verifier tries all.
    #[inline(always)]
    pub fn forget(&mut self) {
        self.packet = black_box(self.packet);
        // SAFETY: the same reference
        self.scratch = unsafe { &mut *black_box(&raw mut *self.scratch) };
    }
}

/// A packet comes in.
pub struct Ingress;

/// A packet leaves.
pub struct Egress;

/// What a program does with a packet.
pub trait Direction {
    fn decide(arrival: &mut Arrival<'_>) -> Result<i32, Refusal>;

    /// Whether a fragment without ports, whose first one is not known, may be of a
    /// packet that is translated. Then it goes nowhere; else the stack has it.
    fn may_translate(ctx: &TcContext, device: &Device, packet: &Packet) -> bool;

    /// What this program or another one of ours has done with the packet before.
    fn before(ctx: &TcContext) -> Before;

    /// Takes a packet out of a tunnel of ours, and begins anew with what was in it.
    /// Comes back if it is in none.
    fn unwrap(ctx: &TcContext, packet: &Packet, work: &mut Work) -> Result<(), DropReason>;

    /// Whether a frame concerns this node.
    fn concerns_us(ctx: &TcContext, device: &Device) -> bool;

    /// Answers a packet that is refused; `None` if it gets no answer.
    fn refuse(arrival: &mut Arrival<'_>, refusal: Refusal) -> Option<i32>;
}

impl Direction for Ingress {
    #[inline(always)]
    fn decide(arrival: &mut Arrival<'_>) -> Result<i32, Refusal> {
        let is_tunnelled = arrival.scratch.tunnel_port != 0;
        let is_ours = if arrival.packet.is_icmp() {
            match errors::incoming(arrival)? {
                Fate::Done(verdict) => return Ok(verdict),
                // From tunnel to tunnel it would go in circles.
                Fate::HandOver => !is_tunnelled,
                Fate::NotOurs => false,
            }
        } else {
            let has_clients = arrival.device.role & (Device::UPLINK | Device::PODS) != 0;
            follow::incoming(arrival).map_err(refusal)?
                || ((has_clients || is_tunnelled) && begin::begin(arrival)?)
        };
        if is_ours {
            return forward::forward(arrival).map_err(refusal);
        }
        if is_tunnelled {
            return Err(refusal(DropReason::TunnelToStranger));
        }
        Ok(PASS)
    }

    #[inline(always)]
    fn unwrap(ctx: &TcContext, packet: &Packet, work: &mut Work) -> Result<(), DropReason> {
        dsr::unwrap(ctx, packet, work)
    }

    /// The namespace of another node in a lab may have left a mark.
    #[inline(always)]
    fn before(ctx: &TcContext) -> Before {
        match Before::take(ctx) {
            Before::Unwrapped => Before::Unwrapped,
            _ => Before::Nothing,
        }
    }

    /// A device that listens to all (PROMISC) also has what other hosts get, and each
    /// host has what is sent to many: the stack forwards neither. A bridge's port gets
    /// what is for the bridge.
    #[inline(always)]
    fn concerns_us(ctx: &TcContext, device: &Device) -> bool {
        // SAFETY: the kernel hands a valid context.
        let is_for_us = unsafe { (*ctx.skb.skb).pkt_type } == TO_THIS_NODE;
        is_for_us || device.header_bytes == 0 || device.role & Device::PODS != 0
    }

    #[inline(always)]
    fn may_translate(_ctx: &TcContext, device: &Device, packet: &Packet) -> bool {
        device.role & (Device::UPLINK | Device::PODS) != 0 && fragments::asks_service(packet)
    }

    #[inline(always)]
    fn refuse(arrival: &mut Arrival<'_>, refusal: Refusal) -> Option<i32> {
        refuse::answer(arrival, refusal.reason)
    }
}

impl Direction for Egress {
    #[inline(always)]
    fn decide(arrival: &mut Arrival<'_>) -> Result<i32, Refusal> {
        let is_answer = if arrival.packet.is_icmp() {
            errors::outgoing(arrival)
        } else {
            follow::outgoing(arrival)
        };
        if !is_answer.map_err(refusal)? {
            return Ok(PASS);
        }
        follow::go_back(arrival).map_err(refusal)
    }

    #[inline(always)]
    fn unwrap(_ctx: &TcContext, _packet: &Packet, _work: &mut Work) -> Result<(), DropReason> {
        Ok(())
    }

    #[inline(always)]
    fn before(ctx: &TcContext) -> Before {
        Before::take(ctx)
    }

    #[inline(always)]
    fn concerns_us(_ctx: &TcContext, _device: &Device) -> bool {
        true
    }

    #[inline(always)]
    fn may_translate(ctx: &TcContext, _device: &Device, packet: &Packet) -> bool {
        fragments::comes_from_pod(ctx, packet)
    }

    /// The sender is this node's own: it notices by itself.
    #[inline(always)]
    fn refuse(_arrival: &mut Arrival<'_>, _refusal: Refusal) -> Option<i32> {
        None
    }
}

/// What was done with a packet before: it is written in `tc_index`, which nobody else
/// uses, and no rule or socket of anybody can see or set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Before {
    Nothing,
    /// Ingress has sent it on: egress need not look at it.
    SentOn,
    /// Ingress has taken it out of a tunnel, and begins anew.
    Unwrapped,
}

impl Before {
    const SENT_ON: u32 = 0xfa1e;
    const UNWRAPPED: u32 = 0xfa1f;

    /// Writes it on the packet.
    #[inline(always)]
    pub fn note(self, ctx: &TcContext) {
        let number = match self {
            Self::Nothing => 0,
            Self::SentOn => Self::SENT_ON,
            Self::Unwrapped => Self::UNWRAPPED,
        };
        // SAFETY: the kernel hands a valid context.
        unsafe { (*ctx.skb.skb).tc_index = number };
    }

    /// What is written on the packet, and no longer then.
    #[inline(always)]
    fn take(ctx: &TcContext) -> Self {
        // SAFETY: the kernel hands a valid context.
        let before = match unsafe { (*ctx.skb.skb).tc_index } {
            Self::SENT_ON => Self::SentOn,
            Self::UNWRAPPED => Self::Unwrapped,
            _ => return Self::Nothing,
        };
        Self::Nothing.note(ctx);
        before
    }
}

/// Whether the packet is one of a VLAN, and so of another device, although it is seen
/// on the one that carries it.
#[inline(always)]
fn is_of_vlan(ctx: &TcContext) -> bool {
    // SAFETY: the kernel hands a valid context.
    unsafe { (*ctx.skb.skb).vlan_present != 0 && (*ctx.skb.skb).vlan_tci & VLAN_ID != 0 }
}

/// Reads the packet and carries out the verdict.
#[inline(always)]
pub fn run<D: Direction>(ctx: &TcContext) -> i32 {
    let before = D::before(ctx);
    if before == Before::SentOn {
        return PASS;
    }
    // SAFETY: the kernel hands a valid context.
    let index = unsafe { (*ctx.skb.skb).ifindex };
    let Some(device) = maps::device(index) else {
        return PASS;
    };
    if is_of_vlan(ctx) || !D::concerns_us(ctx, device) {
        return PASS;
    }
    let Some(Scratch { packet, work }) = maps::scratch() else {
        return PASS;
    };
    let packet = black_box(packet);
    if before != Before::Unwrapped {
        work.tunnel_port = 0;
    }
    if !parse(ctx, device.header_bytes, packet) || !packet.is_all_there(ctx) {
        if work.tunnel_port == 0 {
            return PASS;
        }
        maps::count_refused(refusal(DropReason::TunnelToStranger));
        return TC_ACT_SHOT;
    }
    // Pods are no Nodes, whatever address they send from.
    if work.tunnel_port == 0
        && device.role & Device::PODS == 0
        && let Err(reason) = D::unwrap(ctx, packet, work)
    {
        maps::count_refused(refusal(reason));
        return TC_ACT_SHOT;
    }
    if !fragments::complete(packet) {
        if work.tunnel_port == 0 && !D::may_translate(ctx, device, packet) {
            return PASS;
        }
        maps::count_refused(refusal(DropReason::FragmentUnknown));
        return TC_ACT_SHOT;
    }
    work.key = packet.key();
    let mut arrival = Arrival {
        ctx,
        packet,
        index,
        device,
        scratch: work,
    };
    match D::decide(&mut arrival) {
        Ok(verdict) => verdict,
        Err(refusal) => {
            maps::count_refused(refusal);
            D::refuse(&mut arrival, refusal).unwrap_or(TC_ACT_SHOT)
        }
    }
}
