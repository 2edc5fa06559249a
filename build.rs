//! Tells the program which commit it was built from, where there is a repository and git.

use std::process::Command;

fn git(args: &[&str]) -> Option<String> {
    let out = Command::new("git").args(args).output().ok().filter(|out| out.status.success())?;
    Some(String::from_utf8(out.stdout).ok()?.trim().to_string()).filter(|text| !text.is_empty())
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Written at each commit and checkout. In a source archive inside another repository this is not ours to
    // follow.
    let ours = git(&["rev-parse", "--show-prefix"]).is_none();
    let revision =
        if ours { git(&["describe", "--always", "--dirty=-modified", "--abbrev=12"]) } else { None };
    if let (true, Some(log)) = (ours, git(&["rev-parse", "--git-path", "logs/HEAD"])) {
        println!("cargo:rerun-if-changed={log}");
    }
    println!("cargo:rustc-env=ZERO3_REVISION={}", revision.unwrap_or_else(|| "unknown".into()));
}
