//! Which processes use a disk, or a file system on it.

use std::fs;
use std::path::Path;

/// The processes, but for this one, that have `path` open or something below it, or are in there,
/// as far as this one may look.
#[must_use]
pub fn users_of(path: &Path) -> String {
    let this = std::process::id().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names: Vec<String> = processes
        .filter(|entry| entry.file_name().to_str() != Some(&this))
        .filter(|entry| {
            let process = entry.path();
            let fds = fs::read_dir(process.join("fd")).into_iter().flatten();
            // Links are read, not followed: a disk that has died may not even be looked at.
            let mut links = ["cwd", "root", "exe"]
                .map(|name| process.join(name))
                .into_iter()
                .chain(fds.flatten().map(|fd| fd.path()));
            links.any(|link| fs::read_link(link).is_ok_and(|target| target.starts_with(path)))
        })
        .map(|entry| {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            let pid = entry.file_name();
            format!("{} (pid {})", name.trim(), pid.to_string_lossy())
        })
        .collect();
    if names.is_empty() {
        "a process that cannot be seen from here".to_owned()
    } else {
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::users_of;

    #[test]
    fn who_is_in_a_folder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(users_of(dir.path()).contains("cannot be seen"));
        let mut child = Command::new("sh")
            .args(["-c", "echo; read -r _"])
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let users = users_of(dir.path());
        assert!(users.contains(&format!("(pid {})", child.id())), "{users}");
        drop(child.stdin.take());
        assert!(child.wait().is_ok());
    }
}
