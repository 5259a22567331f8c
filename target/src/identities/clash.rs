//! Two namespaces that hosts would take for one.

use std::path::Path;

use capstan_config::Nqn;
use uuid::Uuid;

/// The NQN and NSID of a namespace, its path, and whether its UUID is set: the configuration says
/// it, or it is served.
pub(super) type Of<'a> = ((&'a Nqn, u32), &'a Path, bool);

/// That two namespaces have one UUID, in words.
pub(super) fn one_uuid(uuid: Uuid, one: Of<'_>, other: Of<'_>) -> String {
    let another = "write another `uuid` (`uuidgen` makes one) at one of them";
    let name =
        |((nqn, nsid), path, _): Of<'_>| format!("namespace {nsid} of {nqn} ({})", path.display());
    let (known, told) = match (one.2, other.2) {
        (false, true) => (one, other),
        (true, false) => (other, one),
        _ => {
            return format!(
                "{} has UUID {uuid}, which is that of {}: {another}",
                name(one),
                name(other)
            );
        }
    };
    // It goes with what is stored.
    format!(
        "{} is what hosts know by UUID {uuid}, which the configuration gives to {}: move `uuid = \"{uuid}\"` to the \
         [[subsystem.namespace]] of {}, or {another}",
        name(known),
        name(told),
        known.1.display()
    )
}

/// The same of one NGUID.
pub(super) fn one_nguid(nguid: [u8; 16], one: (&Nqn, u32), other: (&Nqn, u32)) -> String {
    format!(
        "namespace {} of {} has NGUID {:032x}, which is that of namespace {} of {}: write another `nguid`, or none, at the one \
         that has it written",
        one.1,
        one.0,
        u128::from_be_bytes(nguid),
        other.1,
        other.0
    )
}
