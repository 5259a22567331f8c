//! File systems to export, in mounts of the test's own, and callers.
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses what it needs"
)]

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use capstan_exports::clients::{Access, Anonymous, ClientRule, ClientRules, Squash};
use capstan_exports::error::FileError;
use capstan_exports::name::NameRule;
use capstan_exports::{
    Caller, Credentials, Export, ExportSettings, Exports, Key, Name, Node, SetAttributes,
};
use nix::errno::Errno;

pub(crate) const KEY: Key = Key::from_bytes([5; capstan_exports::key::KEY_BYTES]);

/// Gives the thread of the test mounts of its own, which go with it.
pub(crate) fn own_mounts() {
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)
        .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))
        .unwrap_or_else(|reason| {
            panic!(
                "no mounts of its own: {reason}; this test needs root, leave it out with: \
                 cargo nextest run -E 'not test(/^root_/)'"
            )
        });
}

/// Whether each change that was looked at has another time: since Linux 6.13. Two within a tick of
/// the clock looked like one before.
pub(crate) fn tells_changes_apart(test: &str) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|text| text.parse::<u32>());
    let version = (
        numbers.next().unwrap().unwrap(),
        numbers.next().unwrap().unwrap(),
    );
    if version < (6, 13) {
        eprintln!("SKIPPED {test}: Linux {version:?} has no multigrain timestamps");
        return false;
    }
    true
}

pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let path = format!(
        "{}:/usr/sbin:/sbin",
        std::env::var("PATH").unwrap_or_default()
    );
    let output = Command::new(program)
        .args(arguments)
        .env("PATH", path)
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

/// A file system, mounted in a folder that goes with it.
pub(crate) struct Disk {
    pub(crate) kind: &'static str,
    folder: tempfile::TempDir,
}

impl Disk {
    /// One of each kind that handles are promised for here. XFS is left out where it is missing.
    pub(crate) fn each(test: &str) -> Vec<Self> {
        let kinds = ["tmpfs", "ext4", "xfs"];
        kinds
            .into_iter()
            .filter_map(|kind| Self::of(test, kind))
            .collect()
    }

    pub(crate) fn of(test: &str, kind: &'static str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        // Everybody may come through to what is mounted.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let disk = Self { kind, folder };
        fs::create_dir(disk.path()).unwrap();
        if kind != "tmpfs" {
            let bytes = if kind == "xfs" { 320 << 20 } else { 48 << 20 };
            fs::File::create(disk.image())
                .unwrap()
                .set_len(bytes)
                .unwrap();
            let image = disk.image();
            let image = image.to_str().unwrap();
            let made = match kind {
                "xfs" => run("mkfs.xfs", &["-q", "-f", image]),
                _ => run("mkfs.ext4", &["-q", "-F", image]),
            };
            if let Err(reason) = made.and_then(|()| disk.try_mount()) {
                assert_eq!(kind, "xfs", "{reason}");
                eprintln!("SKIPPED {test} on XFS: {reason}");
                return None;
            }
        } else {
            disk.mount();
        }
        fs::set_permissions(disk.path(), fs::Permissions::from_mode(0o777)).unwrap();
        Some(disk)
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("mounted")
    }

    pub(crate) fn mount(&self) {
        self.try_mount().unwrap();
    }

    fn try_mount(&self) -> Result<(), String> {
        let (image, path) = (self.image(), self.path());
        let (image, path) = (image.to_str().unwrap(), path.to_str().unwrap());
        match self.kind {
            "tmpfs" => run("mount", &["-t", "tmpfs", "tmpfs", path]),
            _ => run("mount", &["-o", "loop", image, path]),
        }
    }

    pub(crate) fn unmount(&self) {
        run("umount", &[self.path().to_str().unwrap()]).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = run("umount", &["--lazy", self.path().to_str().unwrap()]);
    }
}

pub(crate) fn rules(access: Access, squash: Squash) -> ClientRules {
    let network = "0.0.0.0/0".parse().unwrap();
    let anonymous = Anonymous::default();
    ClientRules::new(vec![ClientRule {
        network,
        access,
        squash,
        anonymous,
        secure_ports: false,
    }])
    .unwrap()
}

pub(crate) fn settings(path: &Path, client_path: &str) -> ExportSettings {
    ExportSettings {
        path: path.into(),
        client_path: client_path.into(),
        id: None,
        file_system: None,
        clients: rules(Access::ReadWrite, Squash::None),
        names: NameRule::Utf8,
        crossmnt: false,
        mount_point: false,
        direct: false,
    }
}

pub(crate) struct Exported {
    pub(crate) exports: Exports,
    pub(crate) export: Arc<Export>,
}

impl Exported {
    pub(crate) fn new(path: &Path) -> Self {
        Self::of(vec![settings(path, "/exported")])
    }

    /// The first of the settings is at hand.
    pub(crate) fn of(settings: Vec<ExportSettings>) -> Self {
        let path = settings[0].client_path.clone();
        let exports = Exports::open(KEY, settings).unwrap();
        let export = exports.by_client_path(&path).unwrap();
        Self { exports, export }
    }

    pub(crate) fn root(&self) -> Node {
        Node::root(&self.export).unwrap()
    }

    pub(crate) fn caller(&self, uid: u32) -> Caller {
        caller(&self.export, uid, &[])
    }

    /// Through the bytes of its handle, as a client comes.
    pub(crate) fn again(&self, node: &Node) -> Result<Node, FileError> {
        let handle = self.exports.handle(node);
        Ok(self.exports.node(handle.bytes())?.expect("a file"))
    }
}

/// Uid and gid are the same.
pub(crate) fn caller(export: &Export, uid: u32, groups: &[u32]) -> Caller {
    let peer: SocketAddr = "192.0.2.1:700".parse().unwrap();
    export
        .caller(
            peer,
            &Credentials {
                uid,
                gid: uid,
                groups,
            },
        )
        .unwrap()
}

pub(crate) fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes(), NameRule::Utf8).unwrap()
}

pub(crate) fn mode(mode: u16) -> SetAttributes {
    SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    }
}

/// A file with an owner and a mode.
pub(crate) fn put(path: &Path, data: &[u8], uid: u32, mode: u32) {
    fs::write(path, data).unwrap();
    chown(path, Some(uid), Some(uid)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, FileError>, errno: Errno) {
    match result {
        Err(error) if error.errno() == Some(errno) => {}
        other => panic!("{other:?} is not {errno}"),
    }
}
