//! Answers to the commands that look for namespaces.

use super::{Script, config};

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
