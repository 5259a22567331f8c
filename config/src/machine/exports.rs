//! The directories that NFS clients get, and what else has something to do with them. Whether their
//! file systems can be exported is found out when they are.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use capstan_exports::ExportSettings;
use capstan_exports::clients::{Access, ClientRule};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::next_step::with_next_step;
use super::volume::type_name;
use super::{Findings, hidden, unmounted};
use crate::shown::word_of;
use crate::{Backing, Config, Namespace, Nfs, ProblemKind};

/// An address of each family that is in no network but those which have every one.
const ELSEWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::BROADCAST),
    IpAddr::V6(Ipv6Addr::new(0xffff, 0, 0, 0, 0, 0, 0, 0xffff)),
];

pub(super) fn check(config: &Config, findings: &mut Findings) {
    let Some(nfs) = &config.nfs else { return };
    if nfs.exports.is_empty() {
        let message =
            "there is no [[export]]: clients find nothing; one with path and clients is one";
        findings.warning("nfs", message.to_owned());
    }
    let mut by_hand = HashMap::new();
    for (index, export) in nfs.exports.iter().enumerate() {
        if let Some(root) = directory(index, &export.path, findings) {
            check_mounted(index, export, findings);
            check_namespaces(config, index, export, &root, findings);
            check_written(index, export, findings);
            check_lasting(index, export, findings);
            let other = export.file_system.map(|id| {
                by_hand
                    .entry(id.0)
                    .or_insert_with(|| (root.dev(), &export.path))
            });
            if let Some((device, first)) = other
                && *device != root.dev()
            {
                let kind = ProblemKind::OneIdOfTwo {
                    path: export.path.clone(),
                    first: first.clone(),
                };
                findings.problem(format!("export[{index}].file_system"), kind);
            }
        }
        check_clients(nfs, index, export, findings);
    }
}

fn directory(index: usize, path: &Path, findings: &mut Findings) -> Option<Metadata> {
    let field = format!("export[{index}].path");
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Some(metadata),
        Ok(metadata) => findings.problem(
            field,
            ProblemKind::NoDirectory {
                path: path.to_owned(),
                found: match metadata.file_type() {
                    of if of.is_file() => "regular file",
                    of if of.is_block_device() => "block device",
                    of => type_name(of),
                },
            },
        ),
        Err(error) => findings.problem(
            field,
            ProblemKind::Open {
                path: path.to_owned(),
                error: no_directory(&error, path),
            },
        ),
    }
    None
}

fn check_mounted(index: usize, export: &ExportSettings, findings: &mut Findings) {
    // What cannot be read is told where the directory is opened.
    if export.lacks_mount().unwrap_or(false) {
        let path = export.path.clone();
        findings.problem(
            format!("export[{index}].path"),
            ProblemKind::NotMounted { path },
        );
    }
}

/// Why a directory cannot be opened, and what to do.
pub(crate) fn no_directory(error: &io::Error, path: &Path) -> String {
    match error.kind() {
        ErrorKind::NotFound => format!(
            "{error}; {}",
            unmounted::in_words(path)
                .or_else(|| hidden::in_words(path))
                .unwrap_or_else(|| format!("`mkdir --parents {}` makes it", word_of(path)))
        ),
        _ => with_next_step(error, path, None),
    }
}

fn check_clients(nfs: &Nfs, index: usize, export: &ExportSettings, findings: &mut Findings) {
    let mut addresses = nfs.tcp.iter().chain(&nfs.rdma);
    let is_everybody = |rule: &&ClientRule| ELSEWHERE.iter().any(|ip| rule.network.contains(*ip));
    let everybody = export.clients.rules().iter().find(is_everybody);
    if let Some(open) = addresses.find(|address| !address.ip().is_loopback())
        && let Some(rule) = everybody
    {
        let may = match rule.access {
            Access::ReadOnly => "read",
            Access::ReadWrite => "read and write",
        };
        findings.warning(
            format!("export[{index}].clients"),
            format!(
                "every machine that reaches {} may {may} {}, as whatever user it says: NFS without \
                 Kerberos believes clients; {} is every address, and a network of yours would be fewer",
                open.ip(),
                export.client_path,
                rule.network,
            ),
        );
    }
    check_networks(nfs, index, export, findings);
    check_ports(nfs, index, export, findings);
}

/// Networks that no client comes from.
fn check_networks(nfs: &Nfs, index: usize, export: &ExportSettings, findings: &mut Findings) {
    let rules = export.clients.rules();
    let nobody = rules.iter().map(|rule| rule.network);
    for network in nobody.filter(|of| of.address().is_unspecified() && of.prefix_bits() > 0) {
        let every = match network.address() {
            IpAddr::V4(_) => "0.0.0.0/0",
            IpAddr::V6(_) => "::/0",
        };
        findings.warning(
            format!("export[{index}].clients"),
            format!("no client has the address {network}; every address is \"{every}\""),
        );
    }
    // Those of IPv4 come to a socket at :: as well, whatever `ip` calls them.
    let addresses: Vec<IpAddr> = nfs.tcp.iter().chain(&nfs.rdma).map(|at| at.ip()).collect();
    let is_v4_only = addresses.iter().all(|ip| ip.to_canonical().is_ipv4());
    let are_v6_only = rules.iter().all(|rule| rule.network.address().is_ipv6());
    if is_v4_only && are_v6_only && !addresses.is_empty() {
        findings.warning(
            format!("export[{index}].clients"),
            format!(
                "all of them have IPv6, and `addresses` of [nfs] is IPv4 alone, so that none reaches {}: add an IPv6 address \
                 there (\"::\" is every one), or the clients' IPv4 networks here",
                export.client_path
            ),
        );
    }
}

/// No port of RDMA is below 1024 as one of TCP is.
fn check_ports(nfs: &Nfs, index: usize, export: &ExportSettings, findings: &mut Findings) {
    let mut rules = export.clients.rules().iter();
    if nfs.tcp.is_empty() && rules.any(|rule| rule.secure_ports) {
        findings.warning(
            format!("export[{index}].secure_ports"),
            format!(
                "it refuses every client over RDMA, and `transports` of [nfs] has nothing else: leave it out, or serve {} \
                 over TCP as well",
                export.client_path
            ),
        );
    }
}

fn is_written(export: &ExportSettings) -> bool {
    let mut rules = export.clients.rules().iter();
    rules.any(|rule| rule.access == Access::ReadWrite)
}

/// In a service all but its own folders is mounted read-only, and clients would be refused what
/// their export lets them.
fn check_written(index: usize, export: &ExportSettings, findings: &mut Findings) {
    let is_read_only =
        statvfs(&export.path).is_ok_and(|of| of.flags().contains(FsFlags::ST_RDONLY));
    if !is_read_only || !is_written(export) {
        return;
    }
    let path = word_of(&export.path);
    findings.warning(
        format!("export[{index}].path"),
        format!(
            "{} is mounted read-only for this process, and clients that may write are refused it (EROFS): in a service \
             `ReadWritePaths={path}` in its drop-in, then a daemon-reload of systemd and a restart; elsewhere mount it for \
             writing (`findmnt -T {path}` shows how it is); or export it with `access = \"read-only\"`",
            export.path.display(),
        ),
    );
}

/// The UUID of a tmpfs is made up when it is mounted.
fn check_lasting(index: usize, export: &ExportSettings, findings: &mut Findings) {
    let is_in_memory = statfs(&export.path).is_ok_and(|of| of.filesystem_type() == TMPFS_MAGIC);
    if is_in_memory && export.file_system.is_none() {
        findings.warning(
            format!("export[{index}].file_system"),
            format!(
                "{} is on a tmpfs, which is another file system after each mount: what clients have of it is stale then; \
                 `file_system = \"UUID\"` gives it an id that stays (`uuidgen` makes one)",
                export.path.display(),
            ),
        );
    }
}

/// A file with two doors works, but not as may be expected.
fn check_namespaces(
    config: &Config,
    index: usize,
    export: &ExportSettings,
    root: &Metadata,
    findings: &mut Findings,
) {
    if !is_written(export) {
        return;
    }
    for subsystem in &config.subsystems {
        for namespace in subsystem.namespaces.iter().filter(|n| !n.read_only) {
            let Some(path) = below(namespace, export, root) else {
                continue;
            };
            findings.warning(
                format!("export[{index}].path"),
                format!(
                    "{} is namespace {} of {} and lies in {}: clients may read it, and as long as hosts \
                     may write it they are refused writing, removing and renaming it (EBUSY by version 4, \
                     EACCES by version 3). Move it, or give it `read_only = true`",
                    path.display(),
                    namespace.nsid,
                    subsystem.nqn,
                    export.path.display(),
                ),
            );
        }
    }
}

/// The file of a namespace, where a client finds it below the export, by whatever path.
fn below<'n>(
    namespace: &'n Namespace,
    export: &ExportSettings,
    root: &Metadata,
) -> Option<&'n Path> {
    let Backing::Path(path) = &namespace.backing else {
        return None;
    };
    let real = path.canonicalize().ok()?;
    let file = fs::metadata(&real).ok().filter(Metadata::is_file)?;
    // What is mounted below an export is not exported with it unless that says so.
    let is_reached = export.crossmnt || file.dev() == root.dev();
    let is_root = |folder: &Path| {
        let at = fs::metadata(folder);
        at.is_ok_and(|at| (at.dev(), at.ino()) == (root.dev(), root.ino()))
    };
    let mut above = real.ancestors().skip(1);
    (is_reached && above.any(is_root)).then_some(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// What is found of the export `/pub` of a machine at `address`, beside a namespace.
    fn found(folder: &Path, keys: &str, address: &str, namespace: &str) -> Vec<String> {
        let path = folder.join("pub");
        let config = Config::from_toml(&format!(
            "[nfs]\naddresses = [\"{address}\"]\n[[export]]\npath = {path:?}\npseudo = \"/pub\"\n{ID}\n{keys}\n\
             [[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-11.com.example:a\"\n\
             allow_any_host = true\n[[subsystem.namespace]]\n{namespace}\n"
        ))
        .unwrap();
        let mut findings = Findings::default();
        check(&config, &mut findings);
        let problems = findings.problems.iter().map(ToString::to_string);
        let warnings = findings.warnings.iter().map(ToString::to_string);
        problems.chain(warnings).collect()
    }

    const ID: &str = "file_system = \"0a6d2c9e-55f1-4a37-8a5c-52b6c4a5f7a1\"";
    const MINE: &str = "clients = [\"192.0.2.0/24\"]";
    const WRITTEN: &str = "access = \"read-write\"\nclients = [\"192.0.2.0/24\"]";

    #[test]
    fn what_is_no_directory_is_a_problem() {
        let folder = tempfile::tempdir().unwrap();
        let of = || found(folder.path(), MINE, "127.0.0.1", "ram = 4096");
        let missing = of();
        assert!(
            missing[0].starts_with("export[0].path: cannot open "),
            "{missing:?}"
        );
        assert!(missing[0].contains("`mkdir --parents "), "{missing:?}");
        fs::write(folder.path().join("pub"), "").unwrap();
        let path = folder.path().join("pub");
        assert_eq!(
            of(),
            [format!(
                "export[0].path: {} is a regular file; an export needs a directory",
                path.display()
            )]
        );
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(of(), [""; 0]);
    }

    #[test]
    fn an_export_for_everybody_is_a_warning_unless_only_this_machine_reaches_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("pub")).unwrap();
        let of = |keys: &str, address: &str| found(folder.path(), keys, address, "ram = 4096");
        let open = "clients = [\"192.0.2.0/24\", { network = \"::/0\", access = \"read-write\" }]";
        let warnings = of(open, "0.0.0.0");
        let [warning] = &warnings[..] else {
            panic!("{warnings:?}")
        };
        for words in [
            "export[0].clients: ",
            "0.0.0.0 may read and write /pub",
            "::/0",
        ] {
            assert!(warning.contains(words), "{warning}");
        }
        assert!(of("clients = [\"0.0.0.0/0\"]", "0.0.0.0")[0].contains("may read /pub"));
        assert_eq!(of(open, "127.0.0.1"), [""; 0]);
        assert_eq!(of(MINE, "0.0.0.0"), [""; 0]);
    }

    #[test]
    fn a_namespace_that_clients_find_and_might_write_is_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("pub/images");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("disk.img"), [0; 4096]).unwrap();
        fs::write(folder.path().join("other.img"), [0; 4096]).unwrap();
        symlink(&inner, folder.path().join("link")).unwrap();
        let of = |keys: &str, path: &str, more: &str| {
            let path = folder.path().join(path);
            let namespace = format!("path = {path:?}\n{more}");
            found(folder.path(), keys, "127.0.0.1", &namespace)
        };
        for path in ["pub/images/disk.img", "link/disk.img"] {
            let warnings = of(WRITTEN, path, "");
            let [warning] = &warnings[..] else {
                panic!("{path}: {warnings:?}")
            };
            for words in [
                "is namespace 1 of nqn.2026-11.com.example:a and lies in",
                "they are refused writing, removing and renaming it (EBUSY by version 4, EACCES by",
            ] {
                assert!(warning.contains(words), "{warning}");
            }
        }
        assert_eq!(of(WRITTEN, "other.img", ""), [""; 0]);
        assert_eq!(of(MINE, "pub/images/disk.img", ""), [""; 0]);
        assert_eq!(
            of(WRITTEN, "pub/images/disk.img", "read_only = true"),
            [""; 0]
        );
    }

    #[test]
    fn clients_that_cannot_come_are_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("pub")).unwrap();
        let of = |keys: &str, address: &str| found(folder.path(), keys, address, "ram = 4096");
        let one = |keys: &str, address: &str, words: &str| {
            let warnings = of(keys, address);
            assert!(
                matches!(&warnings[..], [warning] if warning.contains(words)),
                "{warnings:?}"
            );
        };
        let nobody = "no client has the address 0.0.0.0/32; every address is \"0.0.0.0/0\"";
        one("clients = [\"0.0.0.0\"]", "127.0.0.1", nobody);
        let later = "clients = [\"2001:db8::/32\"]";
        one(later, "127.0.0.1", "`addresses` of [nfs] is IPv4 alone");
        assert_eq!(of(later, "::1"), [""; 0]);
        let both = "clients = [\"2001:db8::/32\", \"192.0.2.0/24\"]";
        assert_eq!(of(both, "127.0.0.1"), [""; 0]);
        let secure = format!("{MINE}\nsecure_ports = true");
        assert_eq!(of(&secure, "127.0.0.1"), [""; 0]);
        let rdma = "127.0.0.1\"]\ntransports = [\"rdma";
        one(&secure, rdma, "it refuses every client over RDMA");
    }

    /// In mounts of the thread's own: one file system at `pub`, and mounted read-only at `bound`.
    fn mounts(folder: &Path) {
        let none = None::<&str>;
        let [at, bound] = ["pub", "bound"].map(|name| folder.join(name));
        fs::create_dir(&at).unwrap();
        fs::create_dir(&bound).unwrap();
        let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        unshare(CloneFlags::CLONE_NEWNS)
            .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))
            .and_then(|()| mount(none, &at, Some("tmpfs"), MsFlags::empty(), none))
            .and_then(|()| mount(Some(&at), &bound, none, MsFlags::MS_BIND, none))
            .and_then(|()| mount(none, &bound, none, read_only, none))
            .unwrap_or_else(|reason| {
                panic!(
                    "no mounts of its own: {reason}; this test needs root, leave it out with: cargo \
                     nextest run -E 'not test(/root_/)'"
                )
            });
    }

    #[test]
    fn root_what_clients_write_and_is_mounted_read_only_is_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        mounts(folder.path());
        let [at, bound] = ["pub", "bound"].map(|name| folder.path().join(name));
        assert_eq!(
            found(folder.path(), WRITTEN, "127.0.0.1", "ram = 4096"),
            [""; 0]
        );
        let config = |path: &Path, access: &str, id: &str| {
            Config::from_toml(&format!(
                "[nfs]\naddresses = [\"127.0.0.1\"]\n[[export]]\npath = {path:?}\naccess = {access:?}\n\
                 clients = [\"192.0.2.0/24\"]\n{id}\n"
            ))
            .unwrap()
        };
        let warnings_of = |path: &Path, access: &str, id: &str| {
            let mut findings = Findings::default();
            check(&config(path, access, id), &mut findings);
            let warnings = findings.warnings.iter().map(ToString::to_string);
            warnings.collect::<Vec<_>>()
        };
        let without = warnings_of(&at, "read-write", "");
        assert_eq!(without.len(), 1, "{without:?}");
        assert!(without[0].contains("is on a tmpfs"), "{without:?}");
        let of = |path: &Path, access: &str| warnings_of(path, access, ID);
        assert_eq!(of(&at, "read-write"), [""; 0]);
        assert_eq!(of(&bound, "read-only"), [""; 0]);
        let warnings = of(&bound, "read-write");
        let [warning] = &warnings[..] else {
            panic!("{warnings:?}")
        };
        let line = format!("`ReadWritePaths={}`", bound.display());
        assert!(warning.contains(&line), "{warning}");
    }

    #[test]
    fn root_one_id_of_two_file_systems_is_a_problem() {
        let folder = tempfile::tempdir().unwrap();
        mounts(folder.path());
        let of = |first: &Path, second: &Path| {
            let export = |path: &Path, name: &str| {
                format!(
                    "[[export]]\npath = {path:?}\npseudo = {name:?}\nclients = [\"192.0.2.0/24\"]\n{ID}\n"
                )
            };
            let exports = [export(first, "/a"), export(second, "/b")].concat();
            let text = format!("[nfs]\naddresses = [\"127.0.0.1\"]\n{exports}");
            let mut findings = Findings::default();
            check(&Config::from_toml(&text).unwrap(), &mut findings);
            let problems = findings.problems.iter().map(ToString::to_string);
            problems.collect::<Vec<_>>()
        };
        let [at, bound] = ["pub", "bound"].map(|name| folder.path().join(name));
        assert_eq!(of(&at, &bound), [""; 0]);
        let problems = of(folder.path(), &at);
        let [problem] = &problems[..] else {
            panic!("{problems:?}")
        };
        for words in ["export[1].file_system: ", "`uuidgen`"] {
            assert!(problem.contains(words), "{problem}");
        }
    }
}
