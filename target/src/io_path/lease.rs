//! How many of the data buffers each host may have, so that one which holds some and makes no
//! progress leaves others theirs.
//!
//! A host, by its Host NQN and over all its associations, may have a part of what is free
//! ([`SHARE_TIMES_FREE`]), whatever the others do.
//! Each queue has a spare buffer as well, for a small command when there is no other: it depends on
//! its own host only.

use std::sync::Arc;

use capstan_memory::{Account, Short};
use capstan_nvme_proto::nqn::Nqn;
use capstan_subsystem::Association;
use capstan_transport::Memory;

use super::command::{Holds, Own};
use super::connection::Connection;
use crate::limits::{SHARE_TIMES_FREE, SPARE_BYTES};

/// The hosts that have queues on this reactor.
#[derive(Default)]
pub(super) struct Shares(Vec<Member>);

struct Member {
    host: Nqn,
    account: Account,
    queues: usize,
}

impl Shares {
    /// Another queue of `host`; returns the account for its buffers.
    fn join(&mut self, host: &Nqn, memory: &Memory) -> Account {
        if let Some(member) = self.0.iter_mut().find(|member| member.host == *host) {
            member.queues += 1;
            return member.account;
        }
        let account = memory.data.open_account();
        self.0.push(Member {
            host: host.clone(),
            account,
            queues: 1,
        });
        account
    }

    /// A queue is gone.
    fn leave(&mut self, host: &Nqn, memory: &Memory) {
        let Some(at) = self.0.iter().position(|member| member.host == *host) else {
            return;
        };
        let member = &mut self.0[at];
        member.queues -= 1;
        if member.queues == 0 {
            memory.data.close_account(member.account);
            self.0.swap_remove(at);
        }
    }
}

impl Connection {
    /// It is a queue of `association` from now on, and shares in its host's buffers.
    pub(super) fn join(
        &mut self,
        association: Arc<Association>,
        shares: &mut Shares,
        memory: &Memory,
    ) {
        self.account = shares.join(&association.hostnqn, memory);
        self.association = Some(association);
    }

    /// It is going to be freed.
    pub(super) fn leave(&self, shares: &mut Shares, memory: &Memory) {
        if let Some(association) = &self.association {
            shares.leave(&association.hostnqn, memory);
        }
    }

    /// A buffer for a command, if its host may have one of that size now.
    #[inline]
    pub(super) fn lease(&self, memory: &Memory, len_bytes: u32) -> Result<Own, Short> {
        memory
            .data
            .take_share(self.account, len_bytes, SHARE_TIMES_FREE)
            .map(Own::Leased)
    }

    /// The queue's own buffer, for a command that holds this, if it is free and large enough.
    #[cold]
    pub(super) fn take_spare(&mut self, holds: &Holds, len_bytes: u32) -> Option<Own> {
        if len_bytes > SPARE_BYTES || holds.has_capsule_data() {
            return None;
        }
        self.spare.take().map(Own::Spare)
    }
}

#[cfg(test)]
mod tests {
    use capstan_memory::{Pages, Pool};

    use super::*;

    fn host(number: u16) -> Nqn {
        Nqn::new(&format!("nqn.2026-11.org.example:host{number}")).unwrap()
    }

    #[test]
    fn queues_of_a_host_have_one_share_until_the_last_is_gone() {
        let pool = || Pool::new(4 << 20, Pages::Ordinary).unwrap();
        let memory = Memory {
            data: pool(),
            queues: pool(),
            strangers: Pool::new(4096, Pages::Ordinary).unwrap(),
            places: 0,
            zeroes: None,
        };
        let mut shares = Shares::default();
        let [one, two] = [1, 2].map(host);
        let account = shares.join(&one, &memory);
        assert_eq!(shares.join(&one, &memory), account);
        assert_ne!(shares.join(&two, &memory), account);
        shares.leave(&one, &memory);
        assert_eq!(shares.join(&one, &memory), account, "a queue was left");
        shares.leave(&one, &memory);
        shares.leave(&one, &memory);
        shares.leave(&one, &memory);
        assert_eq!(shares.0.len(), 1, "the other host");
        // The spare buffer is free for the next command.
        assert_eq!(shares.join(&host(3), &memory), account);
    }
}
