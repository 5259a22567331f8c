//! Completions of a device, in the contract's terms and in words.

use super::raw::completion::Wc;
use super::raw::pair::Timers;
use super::sys::{ibv_wc_opcode, ibv_wc_status};
use crate::contract::{WcOpcode, WcStatus};

/// The status of a completion.
pub(super) fn status(wc: &Wc) -> WcStatus {
    status_of(wc.status)
}

fn status_of(status: ibv_wc_status::Type) -> WcStatus {
    match status {
        ibv_wc_status::IBV_WC_SUCCESS => WcStatus::Success,
        ibv_wc_status::IBV_WC_LOC_LEN_ERR => WcStatus::LocalLengthError,
        ibv_wc_status::IBV_WC_LOC_QP_OP_ERR => WcStatus::LocalQpOperationError,
        ibv_wc_status::IBV_WC_LOC_PROT_ERR => WcStatus::LocalProtectionError,
        ibv_wc_status::IBV_WC_WR_FLUSH_ERR => WcStatus::WrFlushError,
        ibv_wc_status::IBV_WC_MW_BIND_ERR => WcStatus::MwBindError,
        ibv_wc_status::IBV_WC_BAD_RESP_ERR => WcStatus::BadResponseError,
        ibv_wc_status::IBV_WC_LOC_ACCESS_ERR => WcStatus::LocalAccessError,
        ibv_wc_status::IBV_WC_REM_INV_REQ_ERR => WcStatus::RemoteInvalidRequestError,
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR => WcStatus::RemoteAccessError,
        ibv_wc_status::IBV_WC_REM_OP_ERR => WcStatus::RemoteOperationError,
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR => WcStatus::RetryExceededError,
        ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => WcStatus::RnrRetryExceededError,
        ibv_wc_status::IBV_WC_REM_ABORT_ERR => WcStatus::RemoteAbortedError,
        ibv_wc_status::IBV_WC_FATAL_ERR => WcStatus::FatalError,
        ibv_wc_status::IBV_WC_RESP_TIMEOUT_ERR => WcStatus::ResponseTimeoutError,
        _ => WcStatus::GeneralError,
    }
}

/// Length of a received message.
pub(super) fn received_bytes(wc: &Wc) -> u32 {
    match wc.opcode {
        ibv_wc_opcode::IBV_WC_RECV => wc.byte_len,
        _ => 0,
    }
}

/// What happened, the peer, the timers in force, and what to do next.
pub(super) fn in_words(
    status: WcStatus,
    vendor_err: u32,
    operation: WcOpcode,
    peer: &str,
    timers: Option<Timers>,
) -> String {
    let mut text = format!("{operation:?} with {peer} failed: {status}");
    if vendor_err != 0 {
        text.push_str(&format!(" (the device's own code {vendor_err:#x})"));
    }
    if let (Some(timers), WcStatus::RetryExceededError | WcStatus::RnrRetryExceededError) =
        (timers, status)
    {
        // InfiniBand specification, Local ACK Timeout: 4.096 µs · 2^n.
        let exponent = u32::from(timers.ack_timeout_exponent.min(31));
        let timeout_ms = (4_096_u64 << exponent) / 1_000_000;
        text.push_str(&format!(
            " (acknowledgement timeout {timeout_ms} ms, {} retries, {} receiver-not-ready retries)",
            timers.retry_count, timers.rnr_retry_count
        ));
    }
    if let Some(step) = next_step(status) {
        text.push_str("; ");
        text.push_str(step);
    }
    text
}

fn next_step(status: WcStatus) -> Option<&'static str> {
    Some(match status {
        // It follows the error that has the cause.
        WcStatus::Success | WcStatus::WrFlushError => return None,
        WcStatus::RetryExceededError | WcStatus::ResponseTimeoutError => {
            "check the link, the path's MTU and, on RoCE, that no switch on the way drops packets"
        }
        WcStatus::RnrRetryExceededError => {
            "the peer posted no receive in time: it is overloaded or its queue is deeper than it \
             serves"
        }
        WcStatus::RemoteAccessError | WcStatus::RemoteInvalidRequestError => {
            "the peer refused the key, the range or the operation: look at its log"
        }
        WcStatus::RemoteOperationError | WcStatus::RemoteAbortedError => {
            "the peer's device could not finish it: look at the peer's log and its dmesg"
        }
        WcStatus::LocalLengthError => {
            "the peer sent more than it may, or the message is longer than the port carries: look \
             at the peer's log"
        }
        WcStatus::BadResponseError => {
            "the peer's device answered with something else than was asked: compare the firmware \
             or drivers of both ends"
        }
        WcStatus::LocalQpOperationError
        | WcStatus::LocalProtectionError
        | WcStatus::LocalAccessError
        | WcStatus::MwBindError => {
            "this side posted what its device does not take, which is a fault of this program: \
             report it with the log"
        }
        WcStatus::FatalError | WcStatus::GeneralError => {
            "the device failed: look at the kernel's log (dmesg)"
        }
    })
}

#[cfg(test)]
mod tests {
    use super::{Timers, in_words, status_of};
    use crate::contract::{WcOpcode, WcStatus};

    #[test]
    fn a_lost_peer_is_told_with_its_timers_and_a_next_step() {
        let timers = Timers {
            ack_timeout_exponent: 18,
            retry_count: 7,
            rnr_retry_count: 6,
        };
        let text = in_words(
            WcStatus::RetryExceededError,
            0x81,
            WcOpcode::RdmaRead,
            "10.9.0.2:4420",
            Some(timers),
        );
        for part in [
            "RdmaRead with 10.9.0.2:4420",
            "0x81",
            "1073 ms, 7 retries",
            "check the link",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    /// Every status verbs has for reliable connections, by its number in `enum ibv_wc_status`.
    #[test]
    fn every_status_has_a_name_a_peer_and_a_next_step() {
        use WcStatus as S;
        let expected = [
            (0, S::Success, ""),
            (1, S::LocalLengthError, "peer's log"),
            (2, S::LocalQpOperationError, "report"),
            (4, S::LocalProtectionError, "report"),
            (5, S::WrFlushError, ""),
            (6, S::MwBindError, "report"),
            (7, S::BadResponseError, "firmware"),
            (8, S::LocalAccessError, "report"),
            (9, S::RemoteInvalidRequestError, "its log"),
            (10, S::RemoteAccessError, "its log"),
            (11, S::RemoteOperationError, "peer's log"),
            (12, S::RetryExceededError, "check the link"),
            (13, S::RnrRetryExceededError, "no receive"),
            (16, S::RemoteAbortedError, "peer's log"),
            (19, S::FatalError, "dmesg"),
            (20, S::ResponseTimeoutError, "check the link"),
            (21, S::GeneralError, "dmesg"),
            // Of datagrams, and of tag matching: this program uses neither.
            (3, S::GeneralError, "dmesg"),
            (99, S::GeneralError, "dmesg"),
        ];
        for (number, name, step) in expected {
            assert_eq!(status_of(number), name, "{number}");
            let text = in_words(name, 0, WcOpcode::Send, "10.9.0.2:4420", None);
            assert!(
                text.starts_with(&format!("Send with 10.9.0.2:4420 failed: {name}"))
                    && text.contains(step)
                    && text.contains(';') != step.is_empty(),
                "{text}"
            );
        }
    }

    #[test]
    fn a_flush_is_told_plainly() {
        let text = in_words(WcStatus::WrFlushError, 0, WcOpcode::Recv, "peer", None);
        assert_eq!(
            text,
            "Recv with peer failed: work request flushed (connection ended)"
        );
    }
}
