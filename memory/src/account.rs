//! How much of a pool each account holds.

/// Identifies a user of a pool, for which the pool counts what it has leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Account(pub(crate) u16);

impl Account {
    /// All leases that have no account of their own, together.
    pub const COMMON: Self = Self(0);
}

/// What every account holds, in units.
#[derive(Debug)]
pub(crate) struct Accounts {
    held: Vec<u32>,
    /// Accounts that are not in use.
    free: Vec<u16>,
    /// Accounts that were closed and still hold something.
    closed: Vec<u16>,
}

impl Accounts {
    pub(crate) fn new() -> Self {
        Self {
            held: vec![0],
            free: Vec::new(),
            closed: Vec::new(),
        }
    }

    /// An account that holds nothing; `None` when there are as many as can be named.
    pub(crate) fn open(&mut self) -> Option<u16> {
        let held = &self.held;
        let free = &mut self.free;
        self.closed.retain(|&account| {
            let empty = held[usize::from(account)] == 0;
            if empty {
                free.push(account);
            }
            !empty
        });
        self.free.pop().or_else(|| {
            let account = u16::try_from(self.held.len()).ok()?;
            self.held.push(0);
            Some(account)
        })
    }

    /// The account is not needed any more; what it holds comes back over time.
    pub(crate) fn close(&mut self, account: u16) {
        if account != Account::COMMON.0 {
            self.closed.push(account);
        }
    }

    #[inline]
    pub(crate) fn held(&self, account: u16) -> u32 {
        self.held.get(usize::from(account)).copied().unwrap_or(0)
    }

    #[inline]
    pub(crate) fn add(&mut self, account: u16, units: u32) {
        if let Some(held) = self.held.get_mut(usize::from(account)) {
            *held += units;
        }
    }

    #[inline]
    pub(crate) fn sub(&mut self, account: u16, units: u32) {
        if let Some(held) = self.held.get_mut(usize::from(account)) {
            *held -= units;
        }
    }
}
