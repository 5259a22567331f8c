//! What NFS has counted, by the paths that clients have of exports.

use std::collections::BTreeMap;
use std::fmt::Display;

use capstan_nfs::counters::{Place, Totals, Version};
use capstan_nfs_proto::v3::status::Status as Status3;
use capstan_nfs_proto::v4::status::Status as Status4;

use super::Metrics;
use super::names::{self, Metric};

/// Takes a number, with the labels of what it is of.
type Put<'a> = dyn FnMut(&'static Metric, &[&dyn Display], u64) + 'a;

/// Gives each number that there is to `put`.
pub(super) fn read(metrics: &Metrics, put: &mut Put<'_>) {
    let Some(service) = metrics.nfs.get() else {
        return;
    };
    let counters = service.counters();
    let [connections, clients, opens] = counters.now();
    put(&names::NFS_CONNECTIONS, &[], connections);
    put(&names::NFS_CLIENTS, &[], clients);
    put(&names::NFS_OPENS, &[], opens);
    let exports = service.exports().all();
    let paths: BTreeMap<_, _> = exports
        .iter()
        .map(|export| (export.id(), &*export.settings().client_path))
        .collect();
    let Totals(totals) = counters.totals();
    for (place, of) in totals {
        let export = match place {
            Place::None => "",
            Place::Others => "other",
            // A reload has taken it out otherwise.
            Place::Export(id) => match paths.get(&id) {
                Some(&path) => path,
                None => continue,
            },
        };
        for ((version, name), count) in of.operations {
            put(
                &names::NFS_OPERATIONS,
                &[&export, &version.word(), &name],
                count,
            );
        }
        for ((version, status), count) in of.errors {
            let status = in_words(version, status);
            put(
                &names::NFS_ERRORS,
                &[&export, &version.word(), &status],
                count,
            );
        }
        if place != Place::None {
            for (word, bytes) in [("read", of.read_bytes), ("written", of.written_bytes)] {
                put(&names::NFS_DATA, &[&export, &word], bytes);
            }
        }
    }
}

fn in_words(version: Version, status: Option<u16>) -> String {
    let Some(status) = status else {
        return "other".to_owned();
    };
    match version {
        Version::V3 => Status3(status.into()).to_string(),
        Version::V4 => Status4(status.into()).to_string(),
    }
}
