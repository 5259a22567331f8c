//! Answers to the commands that look for namespaces.

use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::status::Status;

use super::{Script, config};
use crate::error::IoError;
use crate::host::Unidentified;

/// Read as an answer, it would be "no namespace".
#[test]
fn an_identify_whose_data_is_corrupted_is_no_answer() {
    let mut script = Script::new(config());
    script.controller.corrupt_identifies = 5;
    script.settle();
    assert_eq!(script.told, ["live false"]);
    assert!(!script.host.namespaces().is_empty());
    let mut script = Script::new(config());
    script.controller.corrupt_identifies = u32::MAX;
    script.settle();
    let [told] = &script.told[..] else {
        panic!("{:?}", script.told);
    };
    assert!(
        told.contains("Identify of the namespaces failed: Transient Transport Error"),
        "{told}"
    );
    assert!(told.contains("its CRC32C did not match"), "{told}");
}

/// That there is none is an answer; that the controller cannot tell is none.
#[test]
fn a_namespace_that_cannot_be_identified_is_named_with_the_status() {
    let mut script = Script::new(config());
    let status = Status::INTERNAL_ERROR.dnr();
    script.controller.fails_identify = Some((7, status));
    script.settle();
    let told = [
        "Identify of namespace 7 has failed: Internal Error (SCT 0h, SC 06h, DNR)",
        "live false",
    ];
    assert_eq!(script.told, told);
    let host = &script.host;
    let nsids: Vec<_> = host.namespaces().iter().map(|n| n.nsid).collect();
    assert_eq!(nsids, [1]);
    assert_eq!(host.unidentified(), [Unidentified { nsid: 7, status }]);
    let subnqn = Nqn::new("nqn.s").unwrap();
    let error = |nsid| {
        let (found, rest) = (host.namespaces(), host.unidentified());
        IoError::no_namespace(&subnqn, nsid, found, rest).to_string()
    };
    let told = error(7);
    assert!(
        told.contains("Identify of namespace 7 has failed: "),
        "{told}"
    );
    assert!(told.contains("Internal Error"), "{told}");
    assert!(error(8).contains("no namespace 8 for this host"));
    // It has come back, and the other one has gone while the list was read.
    script.controller.fails_identify = Some((1, Status::INVALID_NAMESPACE_OR_FORMAT.dnr()));
    script.host.rescan(0);
    script.settle();
    let nsids: Vec<_> = script.host.namespaces().iter().map(|n| n.nsid).collect();
    assert_eq!(
        (&nsids[..], script.host.unidentified()),
        (&[7][..], &[][..])
    );
}
