//! What the programs on devices may cost the verifier and the kernel.

use crate::node::node;

/// Instructions that the verifier may look at, and bytes of the program as the
/// kernel keeps it. Linux 5.10 verifies a million instructions at most.
const BUDGETS: [(&str, u32, u32); 2] = [("ingress", 320_000, 110_000), ("egress", 16_000, 30_000)];

#[test]
fn every_program_stays_within_its_budget() {
    let node = node();
    for (name, instructions_max, bytes_max) in BUDGETS {
        let info = node.program(name).info().expect("the program is loaded");
        let instructions = info.verified_instruction_count();
        let instructions = instructions.expect("Linux 5.16 and later tell it");
        let bytes = info.size_translated().expect("who may load may see");
        println!(
            "{name}: {instructions} of {instructions_max} instructions, {bytes} of {bytes_max} bytes"
        );
        for (what, is, max) in [
            ("verified instructions", instructions, instructions_max),
            ("bytes", bytes, bytes_max),
        ] {
            assert!(is <= max, "{name}: {is} {what}, its budget is {max}");
            assert!(
                is * 2 > max,
                "{name}: {is} {what}: a budget of {max} notices no growth"
            );
        }
    }
}
