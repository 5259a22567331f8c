//! Error Information (LID 01h).

use alloc::collections::VecDeque;

use capstan_nvme_proto::log::ErrorInformationEntry;
use zerocopy::IntoBytes;

use super::Window;
use crate::ControllerId;
use crate::bounds::ERROR_LOG_ENTRIES;
use crate::config::Transport;
use crate::control::Target;
use crate::controller::Controller;
use crate::shared::ErrorRecord;
use crate::wire::wire;

/// The newest [`ERROR_LOG_ENTRIES`] errors of a controller, newest first.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    records: VecDeque<ErrorRecord>,
}

impl ErrorLog {
    /// Adds an error in the order of its Error Count: errors of several queues arrive mixed.
    pub(crate) fn add(&mut self, record: ErrorRecord) {
        let at = self
            .records
            .partition_point(|other| other.count > record.count);
        self.records.insert(at, record);
        self.records.truncate(ERROR_LOG_ENTRIES);
    }

    /// Newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ErrorRecord> {
        self.records.iter()
    }
}

impl Controller {
    /// Brings the errors of the I/O queues into the log.
    pub(crate) fn collect_errors(&mut self) {
        for queue in self.io_queues.values_mut() {
            let errors = &mut self.errors;
            queue.errors_seen = queue
                .shared
                .errors_since(queue.errors_seen, |record| errors.add(record));
        }
    }
}

impl Target {
    pub(super) fn error_page(&mut self, id: ControllerId, window: &mut Window<'_>) {
        let Some(controller) = self.controller_mut(id) else {
            return;
        };
        controller.collect_errors();
        let transport = controller.transport;
        let mut entries = 0;
        for record in controller.errors.iter() {
            window.put(entry(record, transport).as_bytes());
            entries = usize::saturating_add(entries, 1);
        }
        for _ in entries..ERROR_LOG_ENTRIES {
            window.put(&[0; ErrorInformationEntry::SIZE_BYTES]);
        }
    }
}

fn entry(record: &ErrorRecord, transport: Transport) -> ErrorInformationEntry {
    let mut entry = wire!(ErrorInformationEntry {
        error_count: record.count.into(),
        sqid: record.qid.into(),
        cid: record.cid.into(),
        parameter_error_location: record.location.into(),
        lba: record.lba.into(),
        nsid: record.nsid.into(),
        trtype: transport.trtype().0,
        opcode: record.opcode,
        version: 1,
    });
    entry.set_status(record.status);
    entry
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use capstan_nvme_proto::status::Status;
    use std::vec::Vec;

    #[test]
    fn newest_first_whatever_the_order_of_arrival_and_bounded() {
        let mut log = ErrorLog::default();
        for count in (1..=100).rev().chain(101..=110) {
            log.add(ErrorRecord {
                count,
                qid: 1,
                cid: 2,
                status: Status::INVALID_FIELD,
                location: 0,
                opcode: 0,
                nsid: 0,
                lba: 0,
            });
        }
        let counts: Vec<u64> = log.iter().map(|record| record.count).collect();
        let expected: Vec<u64> = (47..=110).rev().collect();
        assert_eq!(counts, expected);
    }
}
