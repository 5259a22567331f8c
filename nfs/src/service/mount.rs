//! MOUNT version 3, which gives clients of NFS version 3 their first filehandle (RFC 1813, section
//! 5).
//!
//! What clients have mounted is not kept: DUMP is empty, and UMNT and UMNTALL do nothing. The list
//! would never be right (section 5.2.2 of the RFC: clients that crash are never taken off it),
//! and would tell each client of the others.

use std::net::SocketAddr;
use std::sync::Arc;

use capstan_exports::clients::Refused;
use capstan_exports::name::Name;
use capstan_exports::{Export, Exports, FileError, FileType, Node};
use capstan_nfs_proto::codec::{Chain, Encode, List, Opaque};
use capstan_nfs_proto::limits::MOUNT_PATH_BYTES_MAX;
use capstan_nfs_proto::mount::{
    DirPath, Export as ExportNode, Exports as ExportList, MountCall, MountList, MountOk,
    MountResult, MountStatus,
};
use capstan_nfs_proto::v3::status::Status;
use capstan_rpc_server::{Call, PEER_REPEATS};
use capstan_rpcrdma::rpc::{Accepted, AuthFlavor, Call as Header, Reply};
use capstan_rpcrdma::xdr::{Reader, WriteError, Writer};

use super::Service;
use super::rpc::{Done, known};
use super::v3::{Context, Failure};

/// Carries out a procedure.
pub(super) fn carry_out(
    service: &Service,
    call: &Call<'_>,
    header: &Header<'_>,
    mut arguments: Reader<'_>,
    reply: &mut Writer<'_>,
) -> Done {
    let procedure = match known(MountCall::parse(header.procedure, &mut arguments), call) {
        Ok(procedure) => procedure,
        Err(refused) => return Done::Refused(refused),
    };
    let context = Context::new(service, call, header);
    let written = Reply::success(header.xid)
        .write(reply)
        .and_then(|()| match procedure {
            MountCall::Null | MountCall::Umnt(_) | MountCall::UmntAll => Ok(()),
            MountCall::Mnt(path) => mount(&context, path, reply),
            MountCall::Dump => MountList::default().encode(reply),
            MountCall::Export => list(&context, reply),
        });
    match written {
        Ok(()) => Done::Reply,
        Err(full) => {
            tracing::error!("{}: the reply to a call of MOUNT: {full}", call.peer);
            Done::Refused(Accepted::SystemError)
        }
    }
}

fn mount(context: &Context<'_>, path: DirPath<'_>, to: &mut Writer<'_>) -> Result<(), WriteError> {
    let peer = context.call.peer.ip().to_canonical();
    let shown = path.0.escape_ascii();
    let found = find(context, path.0).and_then(|node| match context.handle(&node) {
        Some(handle) => Ok(handle),
        None => Err(MountStatus::NOTSUPP),
    });
    match &found {
        Ok(_handle) => tracing::info!("{peer} mounts {shown} with NFS version 3"),
        Err(MountStatus::NOENT) => {
            let there = paths_of(context.exports, context.call.peer);
            tracing::info!(
                target: PEER_REPEATS,
                "{peer} cannot mount {shown}: there is no such path; for it there {there}"
            );
        }
        Err(status) => {
            tracing::info!(target: PEER_REPEATS, "{peer} cannot mount {shown}: {status}");
        }
    }
    // Any flavor but AUTH_NONE, which is taken as well, but is no user.
    let flavors = [AuthFlavor::SYS.0];
    let result = match &found {
        Ok(handle) => MountResult::Ok(MountOk {
            fhandle: Opaque(handle.bytes()),
            auth_flavors: List::of(&flavors),
        }),
        Err(status) => MountResult::Failed(*status),
    };
    result.encode(to)
}

/// Paths of exports that are named in one line.
const PATHS_TOLD: usize = 8;

/// The first paths that the client may mount, in words.
pub(super) fn paths_of(exports: &Exports, peer: SocketAddr) -> String {
    let all = exports.all();
    let mine = all
        .iter()
        .map(|export| export.settings())
        .filter(|of| of.clients.for_client(peer).is_ok());
    let mut paths: Vec<_> = mine.map(|of| &*of.client_path).collect();
    paths.sort_unstable();
    paths.dedup();
    let more = paths.len().saturating_sub(PATHS_TOLD);
    paths.truncate(PATHS_TOLD);
    match (paths.is_empty(), more) {
        (true, _) => "is none".to_owned(),
        (false, 0) => format!("is {}", paths.join(", ")),
        (false, more) => format!("is {}, and {more} more", paths.join(", ")),
    }
}

/// The directory that a path stands for: that of an export, or one below it, to which the names
/// lead one by one as the client's user may go.
fn find(context: &Context<'_>, path: &[u8]) -> Result<Node, MountStatus> {
    let names: Vec<&[u8]> = path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
        .collect();
    if !path.starts_with(b"/") {
        return Err(MountStatus::INVAL);
    }
    let (export, below) = export_of(context, &names).ok_or(MountStatus::NOENT)?;
    let mut caller = context.caller(&export).map_err(status_of)?;
    let mut node = Node::root(&export).map_err(of_file)?;
    for name in names.get(below..).unwrap_or_default() {
        if node.file_type() != FileType::Directory {
            return Err(MountStatus::NOTDIR);
        }
        let rule = node.export().settings().names;
        let name = Name::new(name, rule).map_err(|problem| of_file(problem.into()))?;
        node = node
            .lookup(context.exports, &caller, name)
            .map_err(of_file)?;
        if node.export().id() != caller.export() {
            caller = context.caller(node.export()).map_err(status_of)?;
        }
    }
    if node.file_type() != FileType::Directory {
        return Err(MountStatus::NOTDIR);
    }
    Ok(node)
}

/// The export with the longest path of those that the names lead to or through, and how many of
/// them its own path has.
fn export_of(context: &Context<'_>, names: &[&[u8]]) -> Option<(Arc<Export>, usize)> {
    let depth_of = |export: &Arc<Export>| {
        let path = export.settings().client_path.as_bytes();
        let mut own = path.split(|byte| *byte == b'/').filter(|of| !of.is_empty());
        let mut depth = 0_usize;
        own.all(|name| {
            let is_same = names.get(depth).is_some_and(|given| **given == *name);
            depth = depth.saturating_add(1);
            is_same
        })
        .then_some(depth)
    };
    let all = context.exports.all();
    let longest = all
        .iter()
        .filter_map(|export| Some((depth_of(export)?, &export.settings().client_path)))
        .max()?;
    // Not one that is mounted below it and has the same settings.
    let export = context.exports.by_client_path(longest.1)?;
    Some((export, longest.0))
}

fn of_file(error: FileError) -> MountStatus {
    status_of(error.into())
}

/// The status of MNT that says the same (RFC 1813, section 5.1.5).
fn status_of(Failure(status): Failure) -> MountStatus {
    match status {
        Status::PERM => MountStatus::PERM,
        // The root of an export is gone with its file system.
        Status::NOENT | Status::STALE => MountStatus::NOENT,
        Status::ACCES => MountStatus::ACCES,
        Status::NOTDIR => MountStatus::NOTDIR,
        Status::INVAL => MountStatus::INVAL,
        Status::NAMETOOLONG => MountStatus::NAMETOOLONG,
        Status::IO => MountStatus::IO,
        _ => MountStatus::SERVERFAULT,
    }
}

/// EXPORT: what this client may mount, with the networks that may.
fn list(context: &Context<'_>, to: &mut Writer<'_>) -> Result<(), WriteError> {
    let all = context.exports.all();
    let mut listed: Vec<(&str, Vec<String>)> = all
        .iter()
        .filter(|export| {
            let path = &export.settings().client_path;
            let rule = export.settings().clients.for_client(context.call.peer);
            let mounted = context.exports.by_client_path(path);
            !matches!(rule, Err(Refused::NoNetwork(_)))
                && mounted.is_some_and(|mounted| mounted.id() == export.id())
                && u32::try_from(path.len()).is_ok_and(|bytes| bytes <= MOUNT_PATH_BYTES_MAX)
        })
        .map(|export| {
            let rules = export.settings().clients.rules();
            let networks = rules.iter().map(|rule| rule.network.to_string());
            (&*export.settings().client_path, networks.collect())
        })
        .collect();
    listed.sort_unstable();
    let groups: Vec<Vec<_>> = listed
        .iter()
        .map(|(_, networks)| networks.iter().map(|of| Opaque(of.as_bytes())).collect())
        .collect();
    let nodes: Vec<_> = listed
        .iter()
        .zip(&groups)
        .map(|((path, _), groups)| ExportNode {
            dir: Opaque(path.as_bytes()),
            groups: Chain::of(groups),
        })
        .collect();
    ExportList::of(&nodes).encode(to)
}
