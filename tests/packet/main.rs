//! The packet tier: every program on devices through BPF_PROG_TEST_RUN.
//!
//! A story is a chain: what one program makes of a packet is the next one's
//! input, then the answer comes back. Whole packets are compared, not fields.
//! See tests/README.md.

mod bpf;
mod cast;
mod link;
mod model;
mod node;
mod outcome;
mod packet;
mod view;

mod stories {
    mod agree;
    mod algorithms;
    mod budget;
    mod dsr;
    mod errors;
    mod flows;
    mod forward;
    mod fragments;
    mod guests;
    mod leave_alone;
    mod ports;
    mod race;
    mod random;
    mod refuse;
}
