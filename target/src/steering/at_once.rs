//! What is done at once and is in no configuration: associations end, and the file of a namespace
//! becomes longer.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::thread;
use std::time::{Duration, Instant};

use capstan_config::{Backing, Nqn, Size};
use capstan_control::answer::{Changed, Disconnected};
use capstan_control::{DisconnectWhich, Failure, Kind, NamespacePlace, ResizeNamespace};
use capstan_subsystem::Association;

use super::change::{namespace, read_nqn};
use super::report::of_association;
use super::{Steering, locked};

/// How long a new size may take to be seen, and how often it is looked for.
const RESIZE_PATIENCE: Duration = Duration::from_secs(5);
const RESIZE_LOOKS: Duration = Duration::from_millis(10);

impl Steering {
    pub(super) fn disconnect(&self, which: &DisconnectWhich) -> Result<Disconnected, Failure> {
        let DisconnectWhich {
            host,
            subsystem: of,
            cntlid,
        } = which;
        let host = host
            .as_deref()
            .map(|host| read_nqn("host", host))
            .transpose()?;
        let of = of
            .as_deref()
            .map(|of| read_nqn("subsystem", of))
            .transpose()?;
        if host.is_none() && of.is_none() && cntlid.is_none() {
            let words = "connection.disconnect needs a host, a subsystem or a cntlid: with none it would end all of them";
            return Err(Failure::new(Kind::WrongParameters, words));
        }
        let chosen = |one: &Association| {
            host.as_ref().is_none_or(|host| one.hostnqn.is_same(host))
                && of.as_ref().is_none_or(|of| one.subnqn.is_same(of))
                && cntlid.is_none_or(|cntlid| one.cntlid == cntlid)
        };
        let ended = self.control.with(|target| {
            let told: Vec<_> = target
                .associations()
                .filter(|one| chosen(one.association))
                .map(|one| of_association(&one))
                .collect();
            // Each subsystem numbers its own controllers (NVMe Base, Controller ID).
            let subsystems: BTreeSet<_> = told.iter().map(|one| one.subsystem.clone()).collect();
            if cntlid.is_some() && of.is_none() && subsystems.len() > 1 {
                return Err(subsystems);
            }
            target.end_associations(chosen);
            Ok(told)
        });
        let ended = ended.map_err(|subsystems| {
            let names: Vec<_> = subsystems.into_iter().collect();
            let words =
                "several subsystems have a controller of this number; say of which it is meant";
            Failure::new(Kind::WrongParameters, words)
                .of_field("subsystem")
                .allowed(names.join(", "))
        })?;
        if ended.is_empty() {
            let words =
                "no association is so; `capstan-target connection list` shows those there are";
            return Err(Failure::new(Kind::NotFound, words));
        }
        Ok(Disconnected { ended })
    }

    /// Has media looked at until a namespace has its new size, or one does not answer. So many have
    /// another one. A look that has begun before the size changed may not see it.
    fn look_until(&self, subnqn: &Nqn, nsid: u32, bytes: u64) -> usize {
        let deadline = Instant::now() + RESIZE_PATIENCE;
        let mut resized = self.control.look_at_media();
        let seen = || self.control.media().bytes_of(subnqn, nsid);
        let is_seen = || seen().is_none_or(|seen| seen >= bytes);
        while !is_seen() && Instant::now() < deadline {
            thread::sleep(RESIZE_LOOKS);
            resized += self.control.look_at_media();
        }
        resized
    }

    /// Makes the file of a namespace longer, and has hosts told.
    pub(super) fn resize_namespace(&self, resize: &ResizeNamespace) -> Result<Changed, Failure> {
        let size: Size = resize
            .size
            .parse()
            .map_err(|error: capstan_config::SizeError| {
                Failure::new(Kind::Invalid, error.to_string())
                    .of_field("size")
                    .of_value(&resize.size)
            })?;
        // No change takes it away meanwhile.
        let served = locked(&self.served);
        let place = NamespacePlace {
            subsystem: resize.subsystem.clone(),
            nsid: resize.nsid,
        };
        let (of, namespace) = namespace(&place, served.config())?;
        let refused = |words: String| {
            Failure::new(Kind::Refused, words)
                .of_field("size")
                .of_value(&resize.size)
        };
        let Backing::Path(path) = &namespace.backing else {
            return Err(refused(format!(
                "namespace {} of {} is {}, which has its size for as long as it is there: add another one, and take this one out",
                namespace.nsid, of.nqn, namespace.backing
            )));
        };
        let failed = |error: std::io::Error| {
            Failure::new(Kind::Failed, format!("{}: {error}", path.display()))
        };
        // A device that is opened for writing and closed is news to udev.
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(refused(format!(
                "{} is a device: make it larger there (lvextend(8) for a logical volume), which is seen by itself within a second",
                path.display()
            )));
        }
        let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !served.has_open(&metadata, &of.nqn, namespace.nsid) {
            return Err(refused(format!(
                "{} is another file than the one that is served; `capstan-target reload` serves what is there, where that can be",
                path.display()
            )));
        }
        if size.0 < metadata.len() {
            return Err(refused(format!(
                "{} has {} bytes, and a smaller one would lose what is behind its end: a namespace can grow only",
                path.display(),
                metadata.len()
            ))
            .allowed(format!("from {} bytes on", metadata.len())));
        }
        file.set_len(size.0).map_err(failed)?;
        let resized = self.look_until(&of.nqn, namespace.nsid, size.0);
        let changes = format!(
            "namespace {} of {}: {} bytes; namespaces resized: {resized}",
            namespace.nsid, of.nqn, size.0
        );
        Ok(Changed {
            changes,
            ..self.texts().answer()
        })
    }
}
