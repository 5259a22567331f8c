//! Options of `mount` and of the file system: what they may be.

use anyhow::{Result, bail};

use super::signatures::used_otherwise;

/// What may keep a file system of this type from being mounted read-only, and the option that
/// leaves it out (mount(8), xfs(5), btrfs(5)): its journal is replayed by a mount, which writes.
pub(super) fn without_journal(fs_type: &str, options: &[&str]) -> Option<String> {
    let option = match fs_type {
        "ext3" | "ext4" => "noload",
        "xfs" => "norecovery",
        "btrfs" => "rescue=nologreplay",
        _ => return None,
    };
    (!options.iter().any(|given| given.contains(option))).then(|| {
        format!(
            "may have a journal to be replayed, which a read-only mount cannot do (it is mounted for writing elsewhere, or was \
             not unmounted): to look at it without, add `-o {option}`; what the journal holds is missing then, and files that \
             are being written may look damaged"
        )
    })
}

/// One kind of file system: mount(8) takes several, and what begins with `no` as all others.
pub(super) fn kind(text: &str) -> Result<String, String> {
    if let Some((name, step)) = used_otherwise(text) {
        return Err(format!(
            "that is {name}, and no file system to mount: {step}"
        ));
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !text.is_empty() && text.chars().all(is_name) && !text.starts_with("no") {
        return Ok(text.to_owned());
    }
    Err(
        "expected one kind of file system, as ext4; /proc/filesystems lists those of this kernel"
            .to_owned(),
    )
}

/// Refuses what mounts another device than the volume's. `given_by` is what has the options.
pub(super) fn check_options(options: &str, given_by: &str) -> Result<()> {
    let mut names = options
        .split(',')
        .filter_map(|option| option.split('=').next());
    let others = ["loop", "bind", "rbind", "move", "remount"];
    if let Some(other) = names.find(|name| others.contains(name)) {
        bail!(
            "{given_by} has {other:?}, expected options of the file system: the volume is a disk already, and is mounted as \
             that; leave {other:?} out"
        );
    }
    Ok(())
}
