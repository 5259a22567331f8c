//! Identities derived from what is exported, so that they survive a restart.
//!
//! Everything is a version 5 UUID (RFC 9562 §5.5) under one name space of ours. Two machines that
//! export the same thing must not end up with the same identity: a host would take them for two
//! paths to one namespace and mix their blocks. A subsystem's NQN is unique by the operator's word;
//! where the NQN itself is derived ([`export_nqn`]) the machine goes into it.

use std::net::SocketAddr;

use uuid::{Uuid, uuid};

use crate::limits::SERIAL_BYTES_MAX;
use crate::{Backing, Nqn};

/// Name space of every UUID derived here. Changing it changes every derived identity.
const NAME_SPACE: Uuid = uuid!("5d2b9b0c-6f0e-4a8b-9a55-3f1c7e9d4b21");

/// One UUID per list of parts; the separator cannot occur in a part that comes from outside.
fn derive(parts: &[&str]) -> Uuid {
    Uuid::new_v5(&NAME_SPACE, parts.join("\0").as_bytes())
}

/// UUID of a namespace that was given none, of those that last.
#[must_use]
pub fn namespace_uuid(nqn: &Nqn, nsid: u32) -> Uuid {
    derive(&["namespace", nqn.as_str(), &nsid.to_string()])
}

/// UUID of a namespace that is on another medium than the one that hosts have seen under its NQN
/// and NSID, and was given none: the same for the same `medium` (its facts, in words), wherever
/// it is served.
#[must_use]
pub fn other_namespace_uuid(nqn: &Nqn, nsid: u32, medium: &str) -> Uuid {
    derive(&["namespace", nqn.as_str(), &nsid.to_string(), medium])
}

/// Serial number of a subsystem that was given none: `prefix` and hexadecimal digits, 20 bytes.
pub(crate) fn serial(prefix: &str, nqn: &Nqn) -> String {
    let mut serial = format!("{prefix}{:X}", derive(&["serial", nqn.as_str()]).simple());
    serial.truncate(SERIAL_BYTES_MAX);
    serial
}

/// NQN of a quick export. The same file on the same machine is the same subsystem wherever it is
/// served; RAM and null are one per listener, because each process has its own.
pub(crate) fn export_nqn(backing: &Backing, listen: SocketAddr, machine_id: &str) -> Nqn {
    let uuid = match backing {
        Backing::Path(path) => derive(&["export", machine_id, &path.to_string_lossy()]),
        Backing::Ram { size_bytes } | Backing::Null { size_bytes } => derive(&[
            "export",
            machine_id,
            // In bytes, whatever messages say: it never changes.
            &format!("{}:{size_bytes}", backing.kind()),
            &listen.to_string(),
        ]),
    };
    Nqn::from_uuid(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from Python's `uuid.uuid5`. Hosts persist them: a changed derivation is a break.
    #[test]
    fn derived_identities_never_change() {
        let nqn = Nqn::new("nqn.2026-11.com.example:disk1").unwrap();
        assert_eq!(
            namespace_uuid(&nqn, 1).to_string(),
            "5af2a82c-a66a-5439-8a8d-1fe55f23ee82"
        );
        assert_eq!(
            other_namespace_uuid(&nqn, 1, "inode 7").to_string(),
            "5c11540d-301c-5238-b16d-df6f86a7a8b7"
        );
        assert_eq!(serial("CAP", &nqn), "CAP2B4111B556685DDE8");
        let listen = "127.0.0.1:4420".parse().unwrap();
        let export = export_nqn(&Backing::Path("/dev/vda".into()), listen, "machine");
        assert_eq!(
            export.as_str(),
            "nqn.2014-08.org.nvmexpress:uuid:8cc527c0-590c-5019-a56d-cfe8cdbf9e65"
        );
        let ram = Backing::Ram {
            size_bytes: 1 << 20,
        };
        let export = export_nqn(&ram, listen, "machine");
        assert_eq!(
            export.as_str(),
            "nqn.2014-08.org.nvmexpress:uuid:f7dfc8b2-4dc9-5cf4-9d8e-29685faa9717"
        );
    }

    #[test]
    fn identities_differ_where_the_export_does() {
        let (here, there) = (
            "127.0.0.1:1".parse().unwrap(),
            "127.0.0.1:2".parse().unwrap(),
        );
        let (file, ram) = (
            Backing::Path("/a".into()),
            Backing::Ram { size_bytes: 4096 },
        );
        assert_eq!(export_nqn(&file, here, "m"), export_nqn(&file, there, "m"));
        assert_ne!(export_nqn(&file, here, "m"), export_nqn(&file, here, "n"));
        assert_ne!(export_nqn(&ram, here, "m"), export_nqn(&ram, there, "m"));
        let nqn = export_nqn(&file, here, "m");
        assert_ne!(namespace_uuid(&nqn, 1), namespace_uuid(&nqn, 2));
        assert_eq!(serial("12345678", &nqn).len(), SERIAL_BYTES_MAX);
    }
}
