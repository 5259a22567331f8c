//! The directories that NFS clients get, and what else has something to do with them. Whether their
//! file systems can be exported is found out when they are.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use capstan_exports::ExportSettings;
use capstan_exports::clients::{Access, ClientRule};

use super::next_step::with_next_step;
use super::volume::type_name;
use super::{Findings, unmounted};
use crate::shown::word_of;
use crate::{Backing, Config, Namespace, Nfs, ProblemKind};

/// An address of each family that is in no network but those which have every one.
const ELSEWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::BROADCAST),
    IpAddr::V6(Ipv6Addr::new(0xffff, 0, 0, 0, 0, 0, 0, 0xffff)),
];

pub(super) fn check(config: &Config, findings: &mut Findings) {
    let Some(nfs) = &config.nfs else { return };
    check_addresses(nfs, findings);
    for (index, export) in nfs.exports.iter().enumerate() {
        if let Some(root) = directory(index, &export.path, findings) {
            check_namespaces(config, index, export, &root, findings);
        }
        check_clients(nfs, index, export, findings);
    }
}

fn check_addresses(nfs: &Nfs, findings: &mut Findings) {
    let mut addresses: Vec<IpAddr> = nfs.tcp.iter().chain(&nfs.rdma).map(|of| of.ip()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    for ip in addresses {
        if let Err(error) = UdpSocket::bind((ip, 0)) {
            let message = format!(
                "{ip} is not an address of this machine now: {error}; `ip address` lists them"
            );
            findings.warning("nfs.addresses", message);
        }
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
                error: match error.kind() {
                    ErrorKind::NotFound => format!(
                        "{error}; {}",
                        unmounted::in_words(path).unwrap_or_else(|| {
                            format!("`mkdir --parents {}` makes it", word_of(path))
                        })
                    ),
                    _ => with_next_step(&error, path, None),
                },
            },
        ),
    }
    None
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
}

/// A file with two doors works, but not as may be expected.
fn check_namespaces(
    config: &Config,
    index: usize,
    export: &ExportSettings,
    root: &Metadata,
    findings: &mut Findings,
) {
    let mut rules = export.clients.rules().iter();
    if !rules.any(|rule| rule.access == Access::ReadWrite) {
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
                    "{} is namespace {} of {} and lies in {}: clients may read it, and are refused \
                     writing to it as long as hosts may; remove and rename it they can. Move it, or \
                     give it `read_only = true`",
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

    use super::*;

    /// What is found of the export `/pub` of a machine at `address`, beside a namespace.
    fn found(folder: &Path, keys: &str, address: &str, namespace: &str) -> Vec<String> {
        let path = folder.join("pub");
        let config = Config::from_toml(&format!(
            "[nfs]\naddresses = [\"{address}\"]\n[[export]]\npath = {path:?}\npseudo = \"/pub\"\n{keys}\n\
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
        let elsewhere = of(MINE, "192.0.2.77");
        assert!(
            elsewhere[0].starts_with("nfs.addresses: 192.0.2.77 is not"),
            "{elsewhere:?}"
        );
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
            let words = "is namespace 1 of nqn.2026-11.com.example:a and lies in";
            assert!(warning.contains(words), "{warning}");
        }
        assert_eq!(of(WRITTEN, "other.img", ""), [""; 0]);
        assert_eq!(of(MINE, "pub/images/disk.img", ""), [""; 0]);
        assert_eq!(
            of(WRITTEN, "pub/images/disk.img", "read_only = true"),
            [""; 0]
        );
    }
}
