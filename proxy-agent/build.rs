//! Hands the path of the BPF object to the agent, which embeds it. The object
//! is another compiler's work: `cargo xtask bpf` builds it.

use std::env;
use std::path::{Path, PathBuf};

/// In the environment of this script: where a packager has the object. In the
/// agent's sources: where it was found.
const VARIABLE: &str = "FAIRLEAD_BPF_OBJECT";

fn main() {
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let object = env::var_os(VARIABLE).map_or_else(built_object, PathBuf::from);
    println!("cargo::rerun-if-changed={}", object.display());
    if object.is_file() {
        println!("cargo::rustc-env={VARIABLE}={}", object.display());
    } else {
        println!(
            "cargo::error=no BPF object at {}: run `cargo xtask bpf` first",
            object.display()
        );
    }
}

/// Where `cargo xtask bpf` writes it.
fn built_object() -> PathBuf {
    let agent = Path::new(env!("CARGO_MANIFEST_DIR"));
    let object = match env::var_os("CARGO_FEATURE_OTHER_LAYOUT") {
        Some(_) => "target/bpf/other/fairlead.o",
        None => "target/bpf/fairlead.o",
    };
    agent.parent().unwrap_or(agent).join(object)
}
