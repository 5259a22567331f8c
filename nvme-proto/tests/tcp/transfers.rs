//! Whole transfers between the plans of one side and the windows of the other, and what neither
//! lets pass.

use capstan_nvme_proto::tcp::c2h::{C2hData, C2hPlan, C2hWindow};
use capstan_nvme_proto::tcp::fault::{FatalErrorStatus, Fault};
use capstan_nvme_proto::tcp::h2c::H2cData;
use capstan_nvme_proto::tcp::r2t::{R2t, R2tLedger, R2tPlan, R2tWindow};
use capstan_nvme_proto::tcp::setup::{Agreed, Digests};
use proptest::prelude::*;

use super::{request, response};

fn agreed(maxr2t: u32) -> Agreed {
    Agreed {
        maxr2t,
        ..Agreed::new(
            &request(Digests::empty(), 0),
            &response(Digests::empty(), 0),
        )
    }
}

fn status(result: Result<(), Fault>) -> (FatalErrorStatus, u32) {
    let fault = result.expect_err("a fault");
    (fault.status.expect("answered"), fault.information)
}

proptest! {
    /// Each byte of a transfer is asked for once and sent once, with never more than MAXR2T
    /// outstanding, however host and controller take turns.
    #[test]
    fn a_controller_pulls_every_byte_once(
        total_bytes in 1_u32..200_000,
        r2t_max_bytes in 1_u32..70_000,
        maxr2t in 1_u32..5,
        newest_first in any::<bool>(),
    ) {
        let r2t_max_bytes = r2t_max_bytes.max(total_bytes / 64);
        let agreed = agreed(maxr2t);
        let mut ledger = R2tLedger::<4>::new();
        let mut plan = R2tPlan::new(7, total_bytes, r2t_max_bytes, &agreed);
        let mut window = R2tWindow::new(total_bytes, &agreed);
        let mut answers = Vec::new();
        let mut got = vec![0_u8; usize::try_from(total_bytes).expect("usize")];
        while !plan.is_complete() {
            while let Some(r2t) = ledger.ask(&mut plan) {
                prop_assert!(r2t.length_bytes <= r2t_max_bytes);
                answers.push(window.receive(&r2t, &agreed).expect("due"));
            }
            prop_assert!(ledger.outstanding() <= usize::try_from(maxr2t).expect("usize"));
            // A host may answer several in any order: each of them in its own.
            let at = if newest_first { answers.len() - 1 } else { 0 };
            let data: H2cData = answers[at].next().expect("an R2T that is not answered yet");
            prop_assert!(data.length_bytes <= agreed.maxh2cdata_bytes);
            if data.last {
                window.answered();
                answers.remove(at);
            }
            prop_assert_eq!(ledger.receive(&data), Ok(()));
            let start = usize::try_from(data.offset_bytes).expect("usize");
            let length = usize::try_from(data.length_bytes).expect("usize");
            got[start..start + length].iter_mut().for_each(|count| *count += 1);
            plan.landed(&data);
        }
        prop_assert!(got.iter().all(|count| *count == 1));
        prop_assert_eq!(ledger.outstanding(), 0);
        prop_assert_eq!(ledger.ask(&mut plan), None);
    }

    #[test]
    fn a_controller_pushes_every_byte_once(
        total_bytes in 1_u32..100_000,
        pdu_max_bytes in 1_u32..50_000,
        success in any::<bool>(),
    ) {
        let pdu_max_bytes = pdu_max_bytes.max(total_bytes / 64);
        let mut window = C2hWindow::new(total_bytes);
        let all: Vec<C2hData> = C2hPlan::new(3, total_bytes, pdu_max_bytes, success).collect();
        for (place, data) in all.iter().enumerate() {
            prop_assert!(!window.is_complete());
            prop_assert_eq!(window.receive(data), Ok(()));
            let last = place + 1 == all.len();
            prop_assert_eq!((data.last, data.success), (last, last && success));
        }
        prop_assert!(window.is_complete());
    }
}

#[test]
fn a_ledger_knows_what_it_asked_for() {
    let agreed = agreed(2);
    let mut ledger = R2tLedger::<3>::new();
    let mut plan = R2tPlan::new(7, 16_384, 8192, &agreed);
    let first = ledger.ask(&mut plan).expect("the first half");
    let second = ledger.ask(&mut plan).expect("the second half");
    assert_eq!(ledger.ask(&mut plan), None);
    assert_eq!((first.offset_bytes, second.offset_bytes), (0, 8192));
    assert_ne!(first.ttag, second.ttag);
    let data = H2cData {
        cid: 7,
        ttag: second.ttag,
        offset_bytes: 8192,
        length_bytes: 4096,
        last: false,
    };
    let invalid = FatalErrorStatus::INVALID_HEADER_FIELD;
    let range = (FatalErrorStatus::OUT_OF_RANGE, 0);
    let order = (FatalErrorStatus::SEQUENCE_ERROR, 0);
    for (wrong, expected) in [
        (H2cData { ttag: 2, ..data }, (invalid, 10)),
        (H2cData { ttag: 3, ..data }, (invalid, 10)),
        (
            H2cData {
                ttag: u16::MAX,
                ..data
            },
            (invalid, 10),
        ),
        (H2cData { cid: 8, ..data }, (invalid, 8)),
        (
            H2cData {
                offset_bytes: 4096,
                ..data
            },
            range,
        ),
        (
            H2cData {
                length_bytes: 8193,
                ..data
            },
            range,
        ),
        (
            H2cData {
                length_bytes: u32::MAX,
                ..data
            },
            range,
        ),
        (
            H2cData {
                offset_bytes: 12_288,
                ..data
            },
            order,
        ),
        (H2cData { last: true, ..data }, order),
        (
            H2cData {
                length_bytes: 8192,
                ..data
            },
            order,
        ),
    ] {
        assert_eq!(status(ledger.receive(&wrong)), expected, "{wrong:?}");
    }
    // What was wrong has changed nothing.
    assert_eq!(ledger.receive(&data), Ok(()));
    assert_eq!(status(ledger.receive(&data)), order, "the same bytes again");
    let rest = H2cData {
        offset_bytes: 12_288,
        last: true,
        ..data
    };
    assert_eq!(ledger.receive(&rest), Ok(()));
    assert_eq!(
        status(ledger.receive(&rest)),
        (invalid, 10),
        "after the last"
    );
}

#[test]
fn a_full_ledger_asks_for_nothing() {
    let agreed = agreed(1);
    let mut ledger = R2tLedger::<1>::new();
    let mut one = R2tPlan::new(1, 512, 512, &agreed);
    let mut other = R2tPlan::new(2, 512, 512, &agreed);
    let r2t = ledger.ask(&mut one).expect("room");
    assert_eq!(ledger.ask(&mut other), None);
    let data = H2cData {
        cid: 1,
        ttag: r2t.ttag,
        offset_bytes: 0,
        length_bytes: 512,
        last: true,
    };
    assert_eq!(ledger.receive(&data), Ok(()));
    assert_eq!(ledger.ask(&mut other).map(|r2t| r2t.cid), Some(2));
}

#[test]
fn a_host_answers_only_what_is_due() {
    let agreed = agreed(2);
    let mut window = R2tWindow::new(12_288, &agreed);
    let r2t = R2t {
        cid: 7,
        ttag: 0xFFFF,
        offset_bytes: 0,
        length_bytes: 4096,
    };
    let range = (FatalErrorStatus::OUT_OF_RANGE, 0);
    let order = (FatalErrorStatus::SEQUENCE_ERROR, 0);
    for (wrong, expected) in [
        (
            R2t {
                length_bytes: 12_289,
                ..r2t
            },
            range,
        ),
        (
            R2t {
                offset_bytes: 1,
                length_bytes: u32::MAX,
                ..r2t
            },
            range,
        ),
        (
            R2t {
                offset_bytes: 4096,
                ..r2t
            },
            order,
        ),
    ] {
        let result = window.receive(&wrong, &agreed).map(|_| ());
        assert_eq!(status(result), expected, "{wrong:?}");
    }
    let next = |offset_bytes| R2t {
        offset_bytes,
        ..r2t
    };
    assert!(window.receive(&r2t, &agreed).is_ok());
    assert!(window.receive(&next(4096), &agreed).is_ok());
    let third = window.receive(&next(8192), &agreed).map(|_| ());
    assert_eq!(status(third), (FatalErrorStatus::LIMIT_EXCEEDED, 0));
    window.answered();
    assert!(window.receive(&next(8192), &agreed).is_ok());
    // A command that sends nothing.
    let mut none = R2tWindow::new(0, &agreed);
    assert_eq!(status(none.receive(&r2t, &agreed).map(|_| ())), range);
}

#[test]
fn a_host_takes_only_the_data_it_asked_for() {
    let mut window = C2hWindow::new(8192);
    let data = C2hData {
        cid: 7,
        offset_bytes: 0,
        length_bytes: 4096,
        last: false,
        success: false,
    };
    let range = (FatalErrorStatus::OUT_OF_RANGE, 0);
    let order = (FatalErrorStatus::SEQUENCE_ERROR, 0);
    for (wrong, expected) in [
        (
            C2hData {
                length_bytes: 8193,
                ..data
            },
            range,
        ),
        (
            C2hData {
                length_bytes: u32::MAX,
                offset_bytes: 1,
                ..data
            },
            range,
        ),
        (
            C2hData {
                offset_bytes: 4096,
                ..data
            },
            order,
        ),
        (C2hData { last: true, ..data }, order),
        (
            C2hData {
                length_bytes: 8192,
                ..data
            },
            order,
        ),
    ] {
        assert_eq!(status(window.receive(&wrong)), expected, "{wrong:?}");
    }
    assert_eq!(window.receive(&data), Ok(()));
    assert_eq!(status(window.receive(&data)), order);
    let rest = C2hData {
        offset_bytes: 4096,
        last: true,
        ..data
    };
    assert_eq!(window.receive(&rest), Ok(()));
    assert_eq!(status(window.receive(&rest)), order);
    assert_eq!(status(C2hWindow::new(0).receive(&data)), range);
}
