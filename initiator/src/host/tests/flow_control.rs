//! SQ flow control, which Connect may disable (CATTR bit 2).

use super::*;

/// A controller with SQHD or without it, and one that refuses to be without.
#[test]
fn a_controller_that_refuses_no_sq_flow_control_is_asked_for_it() {
    for (asks, refused_on) in [
        (true, None),
        (true, Some(0)),
        (true, Some(1)),
        (false, None),
    ] {
        let mut config = config();
        config.disable_sq_flow_control = asks;
        let mut script = Script::new(config);
        script.controller.refuses_no_flow_control_on = refused_on;
        script.settle();
        assert_eq!(script.told, ["live false"], "{refused_on:?}");
        let is_on = refused_on.is_some() || !asks;
        assert_eq!(script.controller.flow_control, [is_on; 3]);
        assert_eq!(script.host.counters().bad_sqhd, 0);
        assert_eq!(script.host.queue(1).unwrap().credit(), 63);
        // One more connection than a controller that takes what it is asked for has.
        let refused = script.controller.refused_connects;
        assert_eq!(refused, u32::from(refused_on.is_some()));
        // It is not asked again after a loss.
        script
            .host
            .handle_disconnected(1, "gone".to_owned(), script.now_us);
        script.settle();
        script.pass(20_000_000);
        assert!(script.host.is_live());
        assert_eq!(script.controller.refused_connects, refused);
        assert_eq!(script.controller.flow_control, [is_on; 3]);
    }
}

#[test]
fn another_refusal_is_not_asked_again_without_the_attribute() {
    for dw0 in [0x0001_0100, 40] {
        let mut config = config();
        config.disable_sq_flow_control = true;
        let mut script = Script::new(config);
        script.controller.connect = match dw0 {
            40 => |_| (Status::CONNECT_INVALID_PARAMETERS.dnr(), 40),
            _ => |_| (Status::CONNECT_INVALID_PARAMETERS.dnr(), 0x0001_0100),
        };
        script.settle();
        assert!(script.told[0].starts_with("failed: "), "{:?}", script.told);
        assert_eq!(script.controller.flow_control, [false]);
    }
}
