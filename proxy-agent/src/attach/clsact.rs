//! Programs on devices before Linux 6.6, which has no TCX links: filters of a
//! clsact qdisc, by netlink.
//!
//! A filter belongs to its device and outlives us, like a pinned link. Ours is
//! found again by its name, and replaced in one step (net/sched/cls_bpf.c,
//! `cls_bpf_change`). Filters of others, and a qdisc that others made or use,
//! are never touched.

use crate::netlink::request;
use crate::sys::TcxHook;
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcMessage, TcOption,
};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const CLSACT: &str = "clsact";
/// include/uapi/linux/pkt_sched.h: TC_H_CLSACT, and the qdisc's own handle.
const ROOT: u32 = 0xffff_fff1;
const HANDLE: u32 = 0xffff_0000;

/// Priorities 1 and 65535: the lowest runs first. A filter that another program
/// added there later runs before ours of the same priority.
const fn priority(hook: TcxHook) -> u32 {
    match hook {
        TcxHook::Ingress => 1,
        TcxHook::Egress => 0xffff,
    }
}

/// TC_H_MIN_INGRESS and TC_H_MIN_EGRESS below the qdisc.
const fn parent(hook: TcxHook) -> u32 {
    match hook {
        TcxHook::Ingress => 0xffff_fff2,
        TcxHook::Egress => 0xffff_fff3,
    }
}

const fn name(hook: TcxHook) -> &'static str {
    match hook {
        TcxHook::Ingress => "fairlead_ingress",
        TcxHook::Egress => "fairlead_egress",
    }
}

/// A filter of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) program_id: u32,
    handle: TcHandle,
    info: u32,
}

/// Our filter on a hook; `None` also if the device is gone.
pub(super) fn find(device: u32, hook: TcxHook) -> io::Result<Option<Filter>> {
    Ok(filters(device, hook)?
        .into_iter()
        .find_map(|it| ours(&it, hook)))
}

/// Ids of the programs of all filters on a hook, in the order in which they run.
pub(super) fn programs(device: u32, hook: TcxHook) -> io::Result<Vec<u32>> {
    let filters = filters(device, hook)?;
    Ok(filters
        .iter()
        .filter_map(|it| program_id(options(it)?))
        .collect())
}

/// Adds our filter, or replaces its program. The qdisc must be there.
pub(super) fn put(program: BorrowedFd<'_>, device: u32, hook: TcxHook) -> io::Result<()> {
    let mut message = message(device, parent(hook))?;
    let flags = match find(device, hook)? {
        Some(found) => {
            message.header.handle = found.handle;
            message.header.info = found.info;
            0
        }
        None => {
            let every_protocol = u32::from((libc::ETH_P_ALL as u16).to_be());
            message.header.info = priority(hook) << 16 | every_protocol;
            NLM_F_CREATE | NLM_F_EXCL
        }
    };
    let options = [
        TcFilterBpfOption::ProgFd(program.as_raw_fd().cast_unsigned()),
        TcFilterBpfOption::ProgName(name(hook).to_owned()),
        TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
    ];
    message.attributes = vec![
        TcAttribute::Kind(TcFilterBpf::KIND.to_owned()),
        TcAttribute::Options(options.map(TcOption::Bpf).into()),
    ];
    request(
        RouteNetlinkMessage::NewTrafficFilter(message),
        flags | NLM_F_ACK,
    )
    .map(drop)
}

/// Removes our filter, if it is there.
pub(super) fn remove(device: u32, hook: TcxHook) -> io::Result<()> {
    let Some(found) = find(device, hook)? else {
        return Ok(());
    };
    let mut message = message(device, parent(hook))?;
    message.header.handle = found.handle;
    message.header.info = found.info;
    message.attributes = vec![TcAttribute::Kind(TcFilterBpf::KIND.to_owned())];
    request(RouteNetlinkMessage::DelTrafficFilter(message), NLM_F_ACK).map(drop)
}

/// Adds the qdisc; `false` if there is one.
pub(super) fn add_qdisc(device: u32) -> io::Result<bool> {
    let mut message = message(device, ROOT)?;
    message.header.handle = HANDLE.into();
    message.attributes = vec![TcAttribute::Kind(CLSACT.to_owned())];
    let add = RouteNetlinkMessage::NewQueueDiscipline(message);
    match request(add, NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
        outcome => outcome.map(|_| true),
    }
}

/// Whether nobody has a filter on the device.
pub(super) fn is_unused(device: u32) -> io::Result<bool> {
    let of = |hook| filters(device, hook);
    Ok(of(TcxHook::Ingress)?.is_empty() && of(TcxHook::Egress)?.is_empty())
}

/// Removes the qdisc, which may be gone.
pub(super) fn remove_qdisc(device: u32) -> io::Result<()> {
    let mut message = message(device, ROOT)?;
    message.header.handle = HANDLE.into();
    message.attributes = vec![TcAttribute::Kind(CLSACT.to_owned())];
    let remove = RouteNetlinkMessage::DelQueueDiscipline(message);
    match request(remove, NLM_F_ACK) {
        Err(error) if is_gone(&error) => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// Whether the kernel says that there is no such device or qdisc.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENODEV | libc::ENOENT | libc::EINVAL)
    )
}

fn message(device: u32, parent: u32) -> io::Result<TcMessage> {
    let mut message = TcMessage::with_index(i32::try_from(device).map_err(io::Error::other)?);
    message.header.parent = parent.into();
    Ok(message)
}

/// All filters of a hook: with an empty message for each priority, too.
fn filters(device: u32, hook: TcxHook) -> io::Result<Vec<TcMessage>> {
    let get = RouteNetlinkMessage::GetTrafficFilter(message(device, parent(hook))?);
    let answers = match request(get, NLM_F_DUMP) {
        // Before Linux 5.4 or so for a device without the qdisc.
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        answers => answers?,
    };
    let filter = |answer| match answer {
        RouteNetlinkMessage::NewTrafficFilter(message) => Some(message),
        _ => None,
    };
    Ok(answers.into_iter().filter_map(filter).collect())
}

fn options(message: &TcMessage) -> Option<&[TcOption]> {
    message.attributes.iter().find_map(|it| match it {
        TcAttribute::Options(options) => Some(options.as_slice()),
        _ => None,
    })
}

fn program_id(options: &[TcOption]) -> Option<u32> {
    options.iter().find_map(|it| match it {
        TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => Some(*id),
        _ => None,
    })
}

fn ours(message: &TcMessage, hook: TcxHook) -> Option<Filter> {
    let options = options(message)?;
    let is_ours = |option: &TcOption| matches!(option, TcOption::Bpf(TcFilterBpfOption::ProgName(it)) if it == name(hook));
    let program_id = program_id(options)?;
    options.iter().any(is_ours).then_some(Filter {
        program_id,
        handle: message.header.handle,
        info: message.header.info,
    })
}
