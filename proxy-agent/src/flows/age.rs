//! How long a flow may be silent. Pure.
//!
//! Both halves of a flow have one state and one age: that of the half which was
//! seen last. A flow by DSR has only the request's half: the backend answers from
//! its own node.
//!
//! | state | of a flow that | may be silent for | as |
//! |---|---|---|---|
//! | `new` | TCP, the backend has not answered | 120 s | conntrack's SYN_SENT; a client's retransmissions are up to 64 s apart |
//! | `handshake` | TCP, the backend has answered, the client has not acknowledged it | 60 s | conntrack's SYN_RECV |
//! | `established` | TCP | 24 h | kube-proxy's `conntrack.tcpEstablishedTimeout` |
//! | `established`, crowded | TCP, and map `flows` is three quarters full | 2 h 4 min | the least that RFC 5382 allows |
//! | `half-closed` | TCP, one side has sent a FIN | 1 h | kube-proxy's `conntrack.tcpCloseWaitTimeout` |
//! | `closed` | TCP, both have; by DSR the client has, whose acknowledgements go on as long as the backend sends | 120 s | conntrack's TIME_WAIT |
//! | `reset` | TCP, the last packet of a side was a RST | 10 s | conntrack's CLOSE; a forged RST is undone by the next packet |
//! | `unanswered` | UDP, also all by DSR | 30 s | conntrack |
//! | `answered` | UDP | 180 s | conntrack; RFC 4787 asks for more than 120 s |

use proxy_common::{Flow, Protocol};

/// What a flow's packets have shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// TCP, the backend has not answered.
    New,
    /// TCP, the client has not acknowledged the backend's answer.
    Handshake,
    /// TCP in both directions.
    Established,
    /// TCP, one side has sent a FIN.
    HalfClosed,
    /// TCP, both sides have.
    Closed,
    /// TCP, the last packet of a side was a RST.
    Reset,
    /// UDP in one direction.
    Unanswered,
    /// UDP in both directions.
    Answered,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 8] = [
        Self::New,
        Self::Handshake,
        Self::Established,
        Self::HalfClosed,
        Self::Closed,
        Self::Reset,
        Self::Unanswered,
        Self::Answered,
    ];

    /// The shortest time that any flow may be silent.
    pub const TIMEOUT_MIN_S: u32 = 10;

    /// The state of a flow by its two halves.
    pub fn of(protocol: u32, request: &Flow, reply: Option<&Flow>) -> Self {
        let reply_state = reply.map_or(0, |it| it.state);
        let either = request.state | reply_state;
        let both = if request.is_dsr() {
            request.state
        } else {
            request.state & reply_state
        };
        let answered = either & Flow::ANSWERED != 0;
        if protocol != u32::from(Protocol::Tcp as u8) {
            return if answered {
                Self::Answered
            } else {
                Self::Unanswered
            };
        }
        if either & Flow::RST != 0 {
            Self::Reset
        } else if !answered {
            if reply.is_some_and(|it| it.packets > 0) {
                Self::Handshake
            } else {
                Self::New
            }
        } else if both & Flow::FIN != 0 {
            Self::Closed
        } else if either & Flow::FIN != 0 {
            Self::HalfClosed
        } else {
            Self::Established
        }
    }

    /// Seconds that a flow may be silent; `crowded` when there is little room.
    pub fn timeout_s(self, crowded: bool) -> u32 {
        match self {
            Self::New | Self::Closed => 120,
            Self::Handshake => 60,
            Self::Established if crowded => 2 * 3600 + 4 * 60,
            Self::Established => 24 * 3600,
            Self::HalfClosed => 3600,
            Self::Reset => Self::TIMEOUT_MIN_S,
            Self::Unanswered => 30,
            Self::Answered => 180,
        }
    }

    /// Whether the backend still has something to do with the flow.
    pub fn is_open(self) -> bool {
        match self {
            Self::Closed | Self::Reset => false,
            Self::New
            | Self::Handshake
            | Self::Established
            | Self::HalfClosed
            | Self::Unanswered
            | Self::Answered => true,
        }
    }

    /// Metric label, and what `fairlead flows` prints.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Handshake => "handshake",
            Self::Established => "established",
            Self::HalfClosed => "half-closed",
            Self::Closed => "closed",
            Self::Reset => "reset",
            Self::Unanswered => "unanswered",
            Self::Answered => "answered",
        }
    }
}

/// Seconds since the last packet of either half.
pub fn silent_s(request: &Flow, reply: Option<&Flow>, now_s: u32) -> u32 {
    let reply_s = reply.map_or(0, |it| it.last_seen_s);
    now_s.saturating_sub(request.last_seen_s.max(reply_s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    const TCP: u32 = 6;
    const UDP: u32 = 17;

    fn half(state: u8, packets: u64, last_seen_s: u32) -> Flow {
        Flow {
            state,
            packets,
            last_seen_s,
            ..Flow::new_zeroed()
        }
    }

    #[test]
    fn the_state_is_that_of_both_halves() {
        const ANSWERED: u8 = Flow::ANSWERED;
        const FIN: u8 = ANSWERED | Flow::FIN;
        const RST: u8 = ANSWERED | Flow::RST;
        for (protocol, request, reply, wanted) in [
            (TCP, 0, Some((0, 0)), State::New),
            (TCP, 0, None, State::New),
            (TCP, 0, Some((0, 1)), State::Handshake),
            (TCP, ANSWERED, Some((ANSWERED, 1)), State::Established),
            (TCP, ANSWERED, None, State::Established),
            (TCP, FIN, Some((ANSWERED, 5)), State::HalfClosed),
            (TCP, ANSWERED, Some((FIN, 5)), State::HalfClosed),
            (TCP, FIN, Some((FIN, 5)), State::Closed),
            (TCP, RST, Some((FIN, 5)), State::Reset),
            (TCP, 0, Some((Flow::RST, 1)), State::Reset),
            (TCP, Flow::RST, Some((0, 0)), State::Reset),
            (UDP, 0, Some((0, 0)), State::Unanswered),
            (UDP, ANSWERED, Some((ANSWERED, 1)), State::Answered),
            (UDP, 0, None, State::Unanswered),
        ] {
            let reply = reply.map(|(state, packets)| half(state, packets, 0));
            assert_eq!(
                State::of(protocol, &half(request, 9, 0), reply.as_ref()),
                wanted,
                "{protocol} {request} {reply:?}"
            );
        }
    }

    #[test]
    fn the_state_of_a_flow_by_dsr_is_what_the_client_has_shown() {
        for (protocol, state, wanted) in [
            (TCP, 0, State::New),
            (TCP, Flow::FIN, State::New),
            (TCP, Flow::ANSWERED, State::Established),
            (TCP, Flow::ANSWERED | Flow::FIN, State::Closed),
            (TCP, Flow::ANSWERED | Flow::FIN | Flow::RST, State::Reset),
            (UDP, 0, State::Unanswered),
        ] {
            let request = Flow {
                kind: Flow::DSR,
                ..half(state, 9, 100)
            };
            assert_eq!(
                State::of(protocol, &request, None),
                wanted,
                "{protocol} {state}"
            );
        }
    }

    #[test]
    fn no_state_ends_before_the_shortest_timeout_and_crowding_only_shortens() {
        for state in State::ALL {
            assert!(state.timeout_s(true) >= State::TIMEOUT_MIN_S);
            assert!(state.timeout_s(true) <= state.timeout_s(false));
        }
    }

    #[test]
    fn the_half_that_was_seen_last_counts() {
        let (old, young) = (half(0, 1, 100), half(0, 1, 160));
        assert_eq!(silent_s(&old, Some(&young), 200), 40);
        assert_eq!(silent_s(&young, Some(&old), 200), 40);
        assert_eq!(silent_s(&old, None, 200), 100);
        assert_eq!(silent_s(&young, None, 100), 0, "seen since");
    }
}
