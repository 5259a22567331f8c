//! What a device says of a completion, in the contract's terms and in words.

use super::raw::completion::Wc;
use super::raw::pair::Timers;
use super::sys::{ibv_wc_opcode, ibv_wc_status};
use crate::contract::{WcOpcode, WcStatus};

/// The status of a completion.
pub(super) fn status(wc: &Wc) -> WcStatus {
    match wc.status {
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

/// What happened, with whom, which timers were in force, and what to do next.
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
        WcStatus::FatalError | WcStatus::GeneralError => "look at the kernel's log (dmesg)",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{Timers, in_words};
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

    #[test]
    fn a_flush_is_told_plainly() {
        let text = in_words(WcStatus::WrFlushError, 0, WcOpcode::Recv, "peer", None);
        assert_eq!(
            text,
            "Recv with peer failed: work request flushed (connection ended)"
        );
    }
}
