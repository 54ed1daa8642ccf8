//! What the programs may cost the verifier and the kernel: a program that grows
//! past its budget is a decision, not an accident.

use anyhow::{Context, ensure};
use lab::{Lab, story};
use serde_json::Value;

/// Bytes of translated instructions that each program may have. Linux 5.10
/// takes a million verified instructions; `cargo xtask kernels` loads them there.
const XLATED_BYTES_MAX: [(&str, u64); 10] = [
    ("connect4", 15_000),
    ("connect6", 15_500),
    ("sendmsg4", 18_500),
    ("sendmsg6", 19_500),
    ("recvmsg4", 2_800),
    ("recvmsg6", 3_300),
    ("getpeername4", 400),
    ("getpeername6", 600),
    ("sock_release", 120),
    ("sock_ops", 1_500),
];

#[test]
fn every_program_stays_within_its_budget() {
    story(
        || Lab::new(1),
        |lab| {
            lab.start_agents()?;
            let n1 = lab.node("n1");
            let status: Value = serde_json::from_str(&n1.fairlead(&["status", "-o", "json"])?)?;
            let hooks = status["hooks"].as_array().context("no hooks")?;
            ensure!(hooks.len() == XLATED_BYTES_MAX.len(), "{hooks:?}");
            for (name, max) in XLATED_BYTES_MAX {
                let hook = hooks.iter().find(|hook| hook["hook"] == name);
                let id = hook.and_then(|hook| hook["program_id"].as_u64());
                let id = id.with_context(|| format!("{name} is not in place"))?;
                let shown = n1.bpftool(&["-j", "prog", "show", "id", &id.to_string()])?;
                let program: Value = serde_json::from_str(&shown)?;
                let bytes = program["bytes_xlated"].as_u64().context("no size")?;
                println!("{name}: {bytes} of {max} bytes");
                ensure!(
                    bytes <= max,
                    "{name} has {bytes} bytes, its budget is {max}"
                );
                ensure!(
                    bytes * 2 > max,
                    "{name} has {bytes} bytes: its budget of {max} is too large to notice growth"
                );
            }
            Ok(())
        },
    );
}
