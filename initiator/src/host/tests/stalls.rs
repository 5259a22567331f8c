//! Controllers that stop answering while an association is set up.

use super::{Script, config};

/// Wherever it stalls: in none of these has the controller named a time of its own.
#[test]
fn a_set_up_that_stalls_ends_with_the_time_of_its_step() {
    // Connect, VS, CAP, CC, CSTS, Identify, Number of Queues, events, two Connects, and the scan.
    for answers in (0..16).filter(|answers| *answers != 4) {
        let mut script = Script::new(config());
        script.answers = answers;
        script.settle();
        script.pass(3_100_000);
        let told = script.told.first().expect("it has ended");
        assert!(told.starts_with("failed: "), "{answers}: {told}");
        assert!(told.contains("within 3000 ms; "), "{answers}: {told}");
        assert!(told.contains("Options::connect_timeout"), "{told}");
    }
}
