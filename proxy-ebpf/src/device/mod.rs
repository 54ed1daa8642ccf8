//! Programs on network devices: clients elsewhere.
//!
//! A frontend is translated where the client's packet enters this node, and
//! translated back where the reply leaves towards that client: replies of local
//! backends at egress, those of remote ones, which came to an address of ours,
//! at ingress. "Not ours" is always TC_ACT_UNSPEC, so that other programs run.

mod answer;
mod begin;
mod client;
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
use flows::refusal;
use proxy_common::{Device, DropReason, decide::Refusal};

/// Not ours, or translated and the stack's to deliver.
const PASS: i32 = TC_ACT_UNSPEC;

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

    /// Whether a packet needs no look, whatever it is.
    fn is_done(ctx: &TcContext) -> bool;

    /// Answers a packet that is refused; `None` if it gets no answer.
    fn refuse(arrival: &mut Arrival<'_>, refusal: Refusal) -> Option<i32>;
}

impl Direction for Ingress {
    #[inline(always)]
    fn decide(arrival: &mut Arrival<'_>) -> Result<i32, Refusal> {
        if arrival.packet.is_icmp() {
            return errors::incoming(arrival);
        }
        let is_uplink = arrival.device.role & Device::UPLINK != 0;
        if follow::incoming(arrival).map_err(refusal)? || (is_uplink && begin::begin(arrival)?) {
            return forward::forward(arrival).map_err(refusal);
        }
        Ok(PASS)
    }

    /// The namespace of another node in a lab may have left a mark.
    #[inline(always)]
    fn is_done(ctx: &TcContext) -> bool {
        route::was_sent_on(ctx);
        false
    }

    #[inline(always)]
    fn may_translate(_ctx: &TcContext, device: &Device, packet: &Packet) -> bool {
        device.role & Device::UPLINK != 0 && fragments::asks_cluster_ip(packet)
    }

    #[inline(always)]
    fn refuse(arrival: &mut Arrival<'_>, refusal: Refusal) -> Option<i32> {
        refuse::answer(arrival, refusal.reason)
    }
}

impl Direction for Egress {
    #[inline(always)]
    fn decide(arrival: &mut Arrival<'_>) -> Result<i32, Refusal> {
        if arrival.packet.is_icmp() {
            return errors::outgoing(arrival);
        }
        follow::outgoing(arrival)
    }

    #[inline(always)]
    fn is_done(ctx: &TcContext) -> bool {
        route::was_sent_on(ctx)
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

/// Reads the packet and carries out the verdict.
#[inline(always)]
pub fn run<D: Direction>(ctx: &TcContext) -> i32 {
    if D::is_done(ctx) {
        return PASS;
    }
    // SAFETY: the kernel hands a valid context.
    let index = unsafe { (*ctx.skb.skb).ifindex };
    let Some(device) = maps::device(index) else {
        return PASS;
    };
    let Some(Scratch { packet, work }) = maps::scratch() else {
        return PASS;
    };
    if !parse(ctx, device.header_bytes, packet) {
        return PASS;
    }
    let packet = black_box(packet);
    if !packet.is_all_there(ctx) {
        return PASS;
    }
    if !fragments::complete(packet) {
        if !D::may_translate(ctx, device, packet) {
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
