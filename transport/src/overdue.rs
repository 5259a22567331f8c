//! What a host has left undone, in the words of its wire.

use std::fmt::Display;

use crate::tcp::limits::HEADWAY_BYTES;

/// What a host has not done in its time.
#[derive(Clone, Copy)]
pub enum Overdue<'a> {
    /// It has not given the data of pulls.
    Pulls {
        /// How many have not completed.
        count: usize,
        /// The size of their data, for people to read.
        size: &'a dyn Display,
    },
    /// It has not taken data or responses.
    Sends,
    /// It has not sent the rest of what it has begun to send.
    Arrival,
}

impl Overdue<'_> {
    pub(crate) fn over_rdma(self) -> String {
        match self {
            Self::Pulls { count: 1, size } => {
                format!("an RDMA READ of {size} from the host was not answered")
            }
            Self::Pulls { count, size } => {
                format!("none of {count} RDMA READs of {size} from the host was answered")
            }
            Self::Sends => "the host took neither data nor responses".to_owned(),
            Self::Arrival => {
                "the rest of a message that the host has begun to send was missing".to_owned()
            }
        }
    }

    pub(crate) fn over_tcp(self) -> String {
        match self {
            Self::Pulls { count: 1, size } => {
                format!("{size} of data that the host was asked for (R2T) was missing")
            }
            Self::Pulls { count, size } => {
                format!(
                    "of {size} of data of {count} commands that the host was asked for (R2T) the oldest command's was missing"
                )
            }
            Self::Sends => {
                let headway_kib = HEADWAY_BYTES >> 10;
                format!("the host took less than {headway_kib} KiB of its data and responses")
            }
            Self::Arrival => {
                "the rest of a PDU that the host has begun to send was missing".to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(overdue: Overdue<'_>) -> [String; 2] {
        [overdue.over_rdma(), overdue.over_tcp()]
    }

    #[test]
    fn pulls_that_are_missing_are_rdma_reads_or_data_of_r2ts() {
        let pulls = |count, size: &str| said(Overdue::Pulls { count, size: &size });
        let one = [
            "an RDMA READ of 4 KiB from the host was not answered",
            "4 KiB of data that the host was asked for (R2T) was missing",
        ];
        let several = [
            "none of 2 RDMA READs of 2 MiB from the host was answered",
            "of 2 MiB of data of 2 commands that the host was asked for (R2T) the oldest command's was missing",
        ];
        assert_eq!(pulls(1, "4 KiB"), one);
        assert_eq!(pulls(2, "2 MiB"), several);
    }

    #[test]
    fn what_was_not_taken_is_nothing_over_rdma_and_may_be_a_little_over_tcp() {
        let expected = [
            "the host took neither data nor responses",
            "the host took less than 256 KiB of its data and responses",
        ];
        assert_eq!(said(Overdue::Sends), expected);
    }

    #[test]
    fn what_is_missing_in_part_is_of_a_message_or_a_pdu() {
        let expected = [
            "the rest of a message that the host has begun to send was missing",
            "the rest of a PDU that the host has begun to send was missing",
        ];
        assert_eq!(said(Overdue::Arrival), expected);
    }
}
