//! What is mounted where (proc_pid_mountinfo(5)), and which of it is on a disk.

mod mountinfo;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::fs::MetadataExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use capstan_nvme_proto::text::Shown;
use nix::libc;

use super::loop_device::device_numbers;
use mountinfo::parse_all;
pub(super) use mountinfo::unescape;

/// Major and minor number.
type Device = (u32, u32);

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its number, which no other mount has as long as it is there.
    pub id: u64,
    /// The number of the mount that it was made on.
    pub parent: u64,
    /// Major and minor number of the file system's device. Some file systems (btrfs, overlay) have
    /// a number of their own, of major 0, which is no disk's.
    pub device: Device,
    /// What was mounted, in the words of the file system: a device, a folder, or nothing of either.
    pub source: OsString,
    /// Where.
    pub mount_point: PathBuf,
    /// Kind of file system.
    pub fs_type: String,
    /// Mounted read-only.
    pub read_only: bool,
    /// Folders that an overlay lies on.
    layers: Vec<PathBuf>,
}

/// Every mount this process sees, in the order they were made.
///
/// # Errors
/// `/proc` is not there.
pub(crate) fn mounts() -> io::Result<Vec<Mount>> {
    Ok(parse_all(&fs::read("/proc/self/mountinfo")?))
}

/// The mount that is seen at `path`: the last one made there.
///
/// # Errors
/// `path` is empty, or `/proc` is not there.
pub fn mount_at(path: &Path) -> io::Result<Option<Mount>> {
    let path = resolved(path)?;
    let mounts = mounts()?;
    Ok(mounts.into_iter().rev().find(|m| m.mount_point == path))
}

/// The path without links, as mountinfo has it. A file system whose disk has died may not even be
/// looked at: of a mount point's path only what leads to it is.
///
/// # Errors
/// `path` is empty.
pub fn resolved(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    if mounts()?.iter().any(|m| m.mount_point == path) {
        return Ok(path);
    }
    fs::canonicalize(&path).or(Ok(path))
}

/// Mounts on the disk `disk`, the last one first: of file systems on it, on its partitions and on
/// what is stacked on those, however they were mounted, and of overlays on them.
///
/// # Errors
/// `/proc` is not there.
pub fn mounts_of(disk: &Path) -> io::Result<Vec<Mount>> {
    Ok(on_disk(mounts()?, &device_numbers(disk), device_at))
}

/// A mount of something else that lies on one which is to be unmounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InTheWay {
    /// The one that is to be unmounted.
    pub of: Mount,
    /// The other one: at the same place, at a folder in it, or at one above it, which hides it.
    pub other: Mount,
}

/// What lies on `mounts` and is none of them, the last one first. What is mounted at the same path
/// would be unmounted instead (umount(2) takes what is seen there), and what is mounted in it is
/// taken along by a lazy unmount.
///
/// # Errors
/// `/proc` is not there.
pub fn in_the_way(mounts: &[Mount]) -> io::Result<Vec<InTheWay>> {
    Ok(others_on(&self::mounts()?, mounts, seen_at))
}

/// The number of the mount that is seen at `path`, as far as that can be told. The file system is
/// not asked.
#[must_use]
pub fn seen_at(path: &Path) -> Option<u64> {
    number_at(path, libc::O_NOFOLLOW)
}

/// The same, with flags of open(2).
pub(super) fn number_at(path: &Path, flags: i32) -> Option<u64> {
    let mut options = fs::OpenOptions::new();
    let flags = libc::O_PATH | flags;
    let opened = options.read(true).custom_flags(flags).open(path).ok()?;
    number_of(&PathBuf::from(format!(
        "/proc/self/fdinfo/{}",
        opened.as_raw_fd()
    )))
}

/// The number of the mount that an open file is on, by its `fdinfo` (proc_pid_fdinfo(5)).
pub(super) fn number_of(fdinfo: &Path) -> Option<u64> {
    let info = fs::read_to_string(fdinfo).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    id.trim().parse().ok()
}

/// The numbers of the mounts of every mount namespace that a process is in.
pub(super) fn numbers_everywhere() -> HashSet<u64> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut namespaces = HashSet::new();
    processes
        .map(|entry| entry.path())
        .filter(|process| {
            let namespace = fs::read_link(process.join("ns/mnt"));
            namespace.is_ok_and(|of| namespaces.insert(of))
        })
        .filter_map(|process| fs::read(process.join("mountinfo")).ok())
        .flat_map(|text| parse_all(&text))
        .map(|mount| mount.id)
        .collect()
}

fn others_on(
    all: &[Mount],
    ours: &[Mount],
    seen_at: impl Fn(&Path) -> Option<u64>,
) -> Vec<InTheWay> {
    let is_ours = |id: u64| ours.iter().any(|of| of.id == id);
    let mut found: Vec<InTheWay> = Vec::new();
    for of in ours {
        let mut below = HashSet::from([of.id]);
        // One that lies on another one was made later, and comes later.
        let on_it = all
            .iter()
            .filter(|m| below.contains(&m.parent) && below.insert(m.id));
        let mut others: Vec<&Mount> = on_it.filter(|m| !is_ours(m.id)).collect();
        others.reverse();
        // What lies over a folder above it hides it.
        let seen = seen_at(&of.mount_point).filter(|&id| !is_ours(id));
        others.extend(all.iter().filter(|m| seen == Some(m.id)));
        for other in others {
            if !found.iter().any(|known| known.other.id == other.id) {
                found.push(InTheWay {
                    of: of.clone(),
                    other: other.clone(),
                });
            }
        }
    }
    found
}

/// A mount that another mount namespace has, and a process there.
#[derive(Clone, Debug)]
pub struct Elsewhere {
    /// The mount.
    pub mount: Mount,
    /// The process.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

impl Elsewhere {
    /// The folder it is mounted at, as this process finds it (proc_pid_root(5)).
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        let point = self.mount.mount_point.strip_prefix("/");
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        point.map_or_else(|_| root.clone(), |point| root.join(point))
    }
}

/// A mount on `disk` that this process does not see: one of a container, or of a service with
/// mounts of its own.
#[must_use]
pub(crate) fn mount_elsewhere(disk: &Path) -> Option<Elsewhere> {
    mounts_elsewhere(disk, 1).into_iter().next()
}

/// At most `count` of them, each of another mount namespace.
#[must_use]
pub fn mounts_elsewhere(disk: &Path, count: usize) -> Vec<Elsewhere> {
    let numbers = device_numbers(disk);
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let mut seen: HashSet<PathBuf> = namespace(Path::new("/proc/self")).into_iter().collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let found = processes
        .filter_map(|entry| Some((entry.path(), entry.file_name().to_str()?.parse().ok()?)))
        .filter(|(process, _)| namespace(process).is_some_and(|of| seen.insert(of)))
        .filter_map(|(process, pid)| {
            let text = fs::read(process.join("mountinfo")).ok()?;
            let found = on_disk(parse_all(&text), &numbers, device_at);
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            Some(Elsewhere {
                mount: found.into_iter().next()?,
                pid,
                name: Shown(name.trim()).to_string(),
            })
        });
    found.take(count).collect()
}

/// An overlay that was mounted with a relative folder, and that folder: whose it is, only the one
/// that mounted it knows.
pub(crate) type OverlayOfRelative = (PathBuf, PathBuf);

/// The overlays that may lie on what was mounted at `points`, as far as their folders' names say;
/// without these, all that may lie anywhere.
///
/// # Errors
/// `/proc` is not there.
pub(crate) fn overlays_perhaps_on(
    points: Option<&[PathBuf]>,
) -> io::Result<Vec<OverlayOfRelative>> {
    Ok(perhaps_on(mounts()?, points))
}

fn perhaps_on(mounts: Vec<Mount>, points: Option<&[PathBuf]>) -> Vec<OverlayOfRelative> {
    let leads_there = |layer: &PathBuf| {
        points.is_none_or(|points| points.iter().any(|at| leads_through(layer, at)))
    };
    let of_one = |mount: Mount| {
        let mut relative = mount.layers.into_iter().filter(|layer| layer.is_relative());
        Some((mount.mount_point, relative.find(leads_there)?))
    };
    mounts.into_iter().filter_map(of_one).collect()
}

/// Whether the end of `point` is what `relative` begins with.
fn leads_through(relative: &Path, point: &Path) -> bool {
    let mut names = relative.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    let mut begin = PathBuf::new();
    names.any(|name| {
        begin.push(name);
        point.ends_with(&begin)
    })
}

/// The number of a device, by its path.
pub(super) fn device_at(path: &Path) -> Option<Device> {
    // Anything else could be on a file system that does not answer.
    let meta = path.starts_with("/dev").then(|| fs::metadata(path).ok());
    let number = meta??.st_rdev();
    Some((libc::major(number), libc::minor(number)))
}

/// Those of `mounts` that are on a disk with `numbers`, the last one first.
fn on_disk(
    mounts: Vec<Mount>,
    numbers: &[Device],
    device_at: impl Fn(&Path) -> Option<Device>,
) -> Vec<Mount> {
    let mut found: Vec<bool> = mounts
        .iter()
        .map(|m| {
            let sources = m.devices().filter_map(&device_at);
            std::iter::once(m.device)
                .chain(sources)
                .any(|device| numbers.contains(&device))
        })
        .collect();
    // An overlay may lie on an overlay, which was mounted before it.
    for at in 0..mounts.len() {
        let layers = mounts.get(at).map_or(&[][..], |m| &m.layers);
        let on_disk = layers.iter().any(|layer| {
            let below = mounts.iter().enumerate().take(at);
            let below = below.filter(|(_, m)| layer.starts_with(&m.mount_point));
            let below = below.max_by_key(|(at, m)| (m.mount_point.as_os_str().len(), *at));
            below.is_some_and(|(at, _)| found.get(at) == Some(&true))
        });
        if on_disk && let Some(found) = found.get_mut(at) {
            *found = true;
        }
    }
    let pairs = mounts.into_iter().zip(found);
    let on_disk = pairs.filter_map(|(mount, found)| found.then_some(mount));
    on_disk.rev().collect()
}

impl Mount {
    /// The devices that the source names, where the file system's own number is none: btrfs one of
    /// its devices, bcachefs all of them.
    fn devices(&self) -> impl Iterator<Item = &Path> {
        let parts = || self.source.as_bytes().split(|&b| b == b':');
        // A network file system has a host name before its colon.
        let named = self.device.0 == 0 && parts().all(|part| part.starts_with(b"/dev/"));
        parts()
            .filter(move |_| named)
            .map(|part| Path::new(OsStr::from_bytes(part)))
    }

    /// Whether it is on the disk with these numbers.
    #[must_use]
    pub fn is_on(&self, numbers: &[Device]) -> bool {
        !on_disk(vec![self.clone()], numbers, device_at).is_empty()
    }

    /// A folder of `of` that this overlay lies on.
    #[must_use]
    pub fn lies_on(&self, of: &Self) -> bool {
        self.layers
            .iter()
            .any(|layer| layer.starts_with(&of.mount_point))
    }
}

#[cfg(test)]
mod tests {
    use super::{Mount, mount_at, on_disk, others_on, parse_all, perhaps_on, seen_at};
    use std::path::{Path, PathBuf};

    #[test]
    fn proc_is_mounted_at_proc() {
        let mount = mount_at(Path::new("/proc")).unwrap().unwrap();
        assert_eq!(mount.fs_type, "proc");
        assert_eq!(mount_at(Path::new("/proc/self")).unwrap(), None);
    }

    #[test]
    fn what_is_seen_at_a_mount_point_is_the_mount_there() {
        let proc = mount_at(Path::new("/proc")).unwrap().unwrap();
        assert_eq!(seen_at(Path::new("/proc")), Some(proc.id));
        assert_eq!(seen_at(Path::new("/proc/self")), Some(proc.id));
        assert_eq!(seen_at(Path::new("/proc/none")), None);
    }

    #[test]
    fn what_lies_on_a_mount_is_found_wherever_it_lies() {
        let mounts = parse_all(
            b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
              40 22 7:3 / /m/a rw - ext4 /dev/loop3 rw\n\
              41 22 7:3 / /m/b rw - ext4 /dev/loop3 rw\n\
              42 40 0:44 / /m/a rw - tmpfs none rw\n\
              43 41 0:45 / /m/b/in rw - tmpfs none rw\n\
              44 43 0:46 / /m/b/in/deep rw - tmpfs none rw\n\
              45 22 0:47 / /m rw - tmpfs none rw\n",
        );
        let of = |ids: &[u64], seen: Option<u64>| {
            let ours: Vec<Mount> = mounts
                .iter()
                .filter(|m| ids.contains(&m.id))
                .cloned()
                .collect();
            let found = others_on(&mounts, &ours, |_| seen);
            let pairs = found.iter().map(|found| (found.of.id, found.other.id));
            pairs.collect::<Vec<_>>()
        };
        assert_eq!(of(&[40], Some(42)), [(40, 42)], "over it");
        assert_eq!(of(&[41], Some(41)), [(41, 44), (41, 43)], "in it");
        assert_eq!(of(&[40, 42], Some(42)), []);
        assert_eq!(of(&[41, 43], Some(41)), [(41, 44)]);
        assert_eq!(of(&[42], Some(45)), [(42, 45)], "over a folder above it");
        assert_eq!(of(&[42], None), []);
    }

    /// Lines of real machines: btrfs with subvolumes and a bind mount, an overlay of a container
    /// and one on it, ext4 on a partition, LVM, a link of udev as source, and what only looks like
    /// it.
    const MOUNTINFO: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw - proc proc rw
40 22 0:45 / /srv/data rw,relatime shared:20 - btrfs /dev/loop3 rw,space_cache=v2,subvolid=5,subvol=/
41 22 0:45 /@home /srv/home rw,relatime shared:21 - btrfs /dev/loop3 rw,subvolid=256,subvol=/@home
42 22 0:45 /@home/a /mnt/bind\\040mount rw - btrfs /dev/loop3 rw,subvolid=256,subvol=/@home
43 22 0:46 / /srv/other rw - btrfs /dev/loop4 rw,subvolid=5,subvol=/
44 22 0:50 / /merged rw - overlay overlay rw,lowerdir=/usr/share:/srv/data/lower,upperdir=/srv/up,workdir=/srv/w
45 22 0:51 / /merged/twice rw - overlay overlay rw,lowerdir=/merged/x:/etc
46 22 0:52 / /unrelated rw - overlay overlay rw,lowerdir=/srv/database,upperdir=/srv/other/u,workdir=/srv/other/w
47 22 259:1 /sub /srv/part ro - ext4 /dev/loop3p1 rw
48 22 0:53 / /tmp/decoy rw - tmpfs /srv/data rw
49 22 0:54 / /net rw - nfs4 host:/dev/loop3 rw
50 22 0:55 / /srv/by-label rw - btrfs /dev/disk/by-label/data rw,subvolid=5,subvol=/
51 22 0:56 / /srv/many rw - bcachefs /dev/loop4:/dev/loop3 rw
";

    fn found(numbers: &[(u32, u32)]) -> Vec<String> {
        let device_at = |path: &Path| match path.to_str() {
            Some("/dev/loop3" | "/dev/disk/by-label/data") => Some((7, 3)),
            Some("/dev/loop4") => Some((7, 4)),
            _ => None,
        };
        let mounts = on_disk(parse_all(MOUNTINFO.as_bytes()), numbers, device_at);
        let points = mounts.iter().map(|m| m.mount_point.display().to_string());
        points.collect()
    }

    #[test]
    fn a_mount_is_known_by_its_source_where_its_number_is_no_disk_s() {
        let on_loop3 = [
            "/srv/many",
            "/srv/by-label",
            "/srv/part",
            "/merged/twice",
            "/merged",
            "/mnt/bind mount",
            "/srv/home",
            "/srv/data",
        ];
        assert_eq!(found(&[(7, 3), (259, 1)]), on_loop3);
        assert_eq!(
            found(&[(7, 4)]),
            ["/srv/many", "/unrelated", "/srv/other"],
            "a folder is not below one whose name it begins with"
        );
        assert_eq!(found(&[(7, 5)]), [""; 0]);
    }

    #[test]
    fn an_overlay_of_relative_folders_is_known_by_the_name_of_the_mount_point() {
        let mounts = "\
44 22 0:50 / /over rw - overlay overlay rw,lowerdir=low,upperdir=m/u,workdir=m/w
45 22 0:51 / /other rw - overlay overlay rw,lowerdir=l/AB:l/CD,upperdir=/up,workdir=/work
46 22 0:52 / /absolute rw - overlay overlay rw,lowerdir=/srv/m
";
        let found = |points: Option<&[PathBuf]>| {
            let found = perhaps_on(parse_all(mounts.as_bytes()), points);
            let texts = found
                .iter()
                .map(|(over, layer)| format!("{} {}", over.display(), layer.display()));
            texts.collect::<Vec<_>>()
        };
        let of = |point: &str| found(Some(&[PathBuf::from(point)]));
        assert_eq!(of("/srv/m"), ["/over m/u"]);
        assert_eq!(of("/srv/l"), ["/other l/AB"]);
        assert_eq!(of("/srv/u"), [""; 0]);
        assert_eq!(found(None), ["/over low", "/other l/AB"]);
    }
}
