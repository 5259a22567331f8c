//! Leases of slab memory.
#![expect(unsafe_code, reason = "copies to and from memory that devices address")]

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::slice;
use std::sync::Arc;

use crate::account::{Account, Accounts};
use crate::buddy::Buddy;
use crate::raw::RawBytes;
use crate::slab::{PAGE_BYTES, Pages, Slab, SlabError, SlabId};
use crate::span::Span;

/// The largest lease, in pages: 4 MiB holds the largest transfer (1 MiB) several times over.
const ORDER_MAX: u8 = 10;

/// Leases power-of-two pieces of one slab, of whole pages. One thread owns a pool and its buffers.
///
/// A pool maps its own slab, so no second pool can lease the same bytes.
#[derive(Clone)]
pub struct Pool(Rc<PoolInner>);

struct PoolInner {
    slab: Arc<Slab>,
    leased: RefCell<Leased>,
}

struct Leased {
    buddy: Buddy,
    accounts: Accounts,
    /// How many parts there are of each lease beside itself, by its first page; empty until there
    /// has been one.
    parts: Vec<u16>,
}

/// Why there is no buffer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// The account holds its share: what is left is for others.
    Share,
    /// No piece that large is free.
    Memory,
}

impl Pool {
    /// A pool over the whole of a new slab ([`Slab::new`]).
    ///
    /// # Errors
    /// [`SlabError`] as for [`Slab::new`].
    pub fn new(len_bytes: usize, pages: Pages) -> Result<Self, SlabError> {
        let slab = Slab::new(len_bytes, pages)?;
        let units = u32::try_from(slab.len_bytes() / PAGE_BYTES).unwrap_or(u32::MAX - 1);
        Ok(Self(Rc::new(PoolInner {
            slab,
            leased: RefCell::new(Leased {
                buddy: Buddy::new(units, ORDER_MAX),
                accounts: Accounts::new(),
                parts: Vec::new(),
            }),
        })))
    }

    /// A new account; [`Account::COMMON`] when there are as many as can be named (65,536).
    #[must_use]
    pub fn open_account(&self) -> Account {
        let opened = self.0.leased.borrow_mut().accounts.open();
        opened.map_or(Account::COMMON, Account)
    }

    /// Closes an account: nothing more is leased on it. What it holds may come back later.
    pub fn close_account(&self, account: Account) {
        self.0.leased.borrow_mut().accounts.close(account.0);
    }

    /// Bytes that the buffers of an account hold now, in whole pieces.
    #[must_use]
    pub fn held_bytes(&self, account: Account) -> usize {
        self.0.leased.borrow().accounts.held(account.0) as usize * PAGE_BYTES
    }

    /// Leases at least `len_bytes` contiguous bytes, page aligned; `None` when no piece that large
    /// is free now. The buffer's [`Buffer::len_bytes`] is `len_bytes` exactly.
    #[must_use]
    pub fn take(&self, len_bytes: u32) -> Option<Buffer> {
        self.lease(Account::COMMON, len_bytes, None).ok()
    }

    /// The same on an account, which afterwards holds at most `times_free` times what is left for
    /// others, or nothing but this. So no account ever has everything, and each further one finds
    /// something.
    ///
    /// # Errors
    /// Why there is no buffer now.
    pub fn take_share(
        &self,
        account: Account,
        len_bytes: u32,
        times_free: u32,
    ) -> Result<Buffer, Short> {
        self.lease(account, len_bytes, Some(times_free))
    }

    #[inline]
    fn lease(
        &self,
        account: Account,
        len_bytes: u32,
        times_free: Option<u32>,
    ) -> Result<Buffer, Short> {
        let pages = (len_bytes as usize)
            .div_ceil(PAGE_BYTES)
            .max(1)
            .next_power_of_two();
        let order = u8::try_from(pages.trailing_zeros())
            .ok()
            .filter(|&o| o <= ORDER_MAX)
            .ok_or(Short::Memory)?;
        let mut leased = self.0.leased.borrow_mut();
        let Leased {
            buddy, accounts, ..
        } = &mut *leased;
        let held = accounts.held(account.0);
        if let Some(times_free) = times_free
            && held != 0
        {
            let left = buddy.free_units().saturating_sub(1 << order);
            if held + (1 << order) > left.saturating_mul(times_free) {
                return Err(Short::Share);
            }
        }
        let unit = buddy.take(order).ok_or(Short::Memory)?;
        accounts.add(account.0, 1 << order);
        drop(leased);
        // SAFETY: the buddy hands out units inside the slab, so the offset stays in the mapping.
        let base = unsafe { self.0.slab.base().add(unit as usize * PAGE_BYTES) };
        Ok(Buffer {
            pool: Rc::clone(&self.0),
            base,
            len_bytes,
            unit,
            account: account.0,
            order,
        })
    }

    /// Bytes that no buffer holds now (not necessarily contiguous).
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.0.leased.borrow().buddy.free_units() as usize * PAGE_BYTES
    }

    /// The slab behind the leases, to be registered.
    #[must_use]
    pub fn slab(&self) -> &Arc<Slab> {
        &self.0.slab
    }
}

/// An exclusive, page-aligned lease of slab memory, or a [part](Buffer::part) of one; the lease
/// returns to its pool when the last is dropped.
///
/// An operation in flight owns the buffer it names, so it cannot be dropped before the device is
/// done with it.
pub struct Buffer {
    pool: Rc<PoolInner>,
    base: NonNull<u8>,
    len_bytes: u32,
    unit: u32,
    account: u16,
    order: u8,
}

impl Buffer {
    /// The address of the first byte, as work requests name it.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// The first byte. Dereferencing is the caller's `unsafe`.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Leased length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        self.len_bytes
    }

    /// The bytes of `range` as a buffer of their own, which has the lease as well: it ends with the
    /// last of them. What one writes the other reads. `None` where the range leaves the buffer, or
    /// when there are as many parts as can be counted (65,535).
    #[must_use]
    pub fn part(&self, range: Range<u32>) -> Option<Self> {
        let len_bytes = range.end.checked_sub(range.start)?;
        if range.end > self.len_bytes {
            return None;
        }
        let mut leased = self.pool.leased.borrow_mut();
        let units = self.pool.slab.len_bytes() / PAGE_BYTES;
        if leased.parts.is_empty() {
            leased.parts.resize(units, 0);
        }
        let parts = leased.parts.get_mut(self.unit as usize)?;
        *parts = parts.checked_add(1)?;
        drop(leased);
        // SAFETY: the range was just compared with the length of the lease.
        let base = unsafe { self.base.add(range.start as usize) };
        Some(Self {
            pool: Rc::clone(&self.pool),
            base,
            len_bytes,
            ..*self
        })
    }

    /// The slab this is a piece of.
    #[must_use]
    pub fn slab_id(&self) -> SlabId {
        self.pool.slab.id()
    }

    /// Copies `out.len()` bytes starting at `offset` out of the buffer.
    ///
    /// # Panics
    /// When the range leaves the buffer; callers check lengths that come from the network first.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) {
        let at = self.check(offset, out.len());
        // SAFETY: `check` proved the source range inside the lease; `out` is a live exclusive
        // slice, and no safe code can hold a reference into the slab, so they do not overlap.
        unsafe { ptr::copy_nonoverlapping(at, out.as_mut_ptr(), out.len()) };
    }

    /// Copies `bytes` into the buffer at `offset`.
    ///
    /// # Panics
    /// When the range leaves the buffer.
    pub fn copy_from(&mut self, offset: usize, bytes: &[u8]) {
        let at = self.check(offset, bytes.len());
        // SAFETY: as in `copy_to`, with the directions exchanged.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
    }

    /// Copies `range` of `other` to `offset` of this buffer.
    ///
    /// # Panics
    /// When either range leaves its buffer.
    pub fn copy_from_buffer(&mut self, offset: usize, other: &Self, range: Range<usize>) {
        let from = other.check(range.start, range.len());
        let to = self.check(offset, range.len());
        // SAFETY: `check` proved both ranges, which may overlap where both are parts of one lease.
        unsafe { ptr::copy(from, to, range.len()) };
    }

    /// Sets `range` to zero.
    ///
    /// # Panics
    /// When the range leaves the buffer.
    pub fn zero(&mut self, range: Range<usize>) {
        let at = self.check(range.start, range.len());
        // SAFETY: `check` proved the range inside the lease.
        unsafe { ptr::write_bytes(at, 0, range.len()) };
    }

    /// The leased bytes, to copy from.
    #[must_use]
    pub fn raw(&self) -> RawBytes<'_> {
        // SAFETY: the lease is mapped while it is borrowed; safe code writes it through copies
        // only, and not while it is borrowed.
        unsafe { RawBytes::new(self.base, self.len_bytes as usize) }
    }

    /// The leased bytes, for another thread: this lease is kept until that one is done with them.
    #[must_use]
    pub fn span(&self) -> Span {
        let at = self.base.addr().get() - self.pool.slab.base().addr().get();
        Span::new(&self.pool.slab, at..at + self.len_bytes as usize)
            .expect("a lease is inside its slab")
    }

    /// The leased bytes.
    ///
    /// # Safety
    /// No operation in flight may write them, through this address or a key, while the slice lives.
    #[must_use]
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the lease is live and initialized (the mapping starts zeroed); the caller
        // answers for writers.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.len_bytes as usize) }
    }

    /// The leased bytes, writable.
    ///
    /// # Safety
    /// No operation in flight may read or write them while the slice lives.
    #[must_use]
    pub unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`; `&mut self` makes it exclusive among safe users.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), self.len_bytes as usize) }
    }

    fn check(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len_bytes as usize),
            "range {offset}+{len} leaves a buffer of {} bytes",
            self.len_bytes
        );
        // SAFETY: just proved inside the lease.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut leased = self.pool.leased.borrow_mut();
        if let Some(parts) = leased.parts.get_mut(self.unit as usize)
            && *parts > 0
        {
            *parts -= 1;
            return;
        }
        leased.buddy.give(self.unit, self.order);
        leased.accounts.sub(self.account, 1 << self.order);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:#x}+{})", self.addr(), self.len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::{Account, Pool, Short};
    use crate::slab::Pages;

    fn pool(bytes: usize) -> Pool {
        Pool::new(bytes, Pages::Ordinary).unwrap()
    }

    #[test]
    fn lease_is_aligned_zeroed_and_returned() {
        let pool = pool(1 << 20);
        let mut buffer = pool.take(5000).unwrap();
        assert_eq!((buffer.addr() % 4096, buffer.len_bytes()), (0, 5000));
        assert_eq!(pool.free_bytes(), (1 << 20) - 8192);
        buffer.copy_from(4990, &[7; 10]);
        let mut out = [1; 12];
        buffer.copy_to(4988, &mut out);
        assert_eq!(out, [0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
        drop(buffer);
        assert_eq!(pool.free_bytes(), 1 << 20);
    }

    #[test]
    fn too_large_and_exhausted_are_none() {
        let pool = pool(1 << 20);
        assert!(pool.take(8 << 20).is_none());
        let _held = pool.take(1 << 20).unwrap();
        assert!(pool.take(1).is_none());
    }

    const MIB: u32 = 1 << 20;

    #[test]
    fn one_account_leaves_a_part_to_the_others() {
        let pool = pool(32 << 20);
        let [one, two] = [(); 2].map(|()| pool.open_account());
        let mut held = Vec::new();
        let short = loop {
            match pool.take_share(one, MIB, 3) {
                Ok(buffer) => held.push(buffer),
                Err(short) => break short,
            }
        };
        assert_eq!((held.len(), short), (24, Short::Share));
        assert_eq!(pool.held_bytes(one), 24 << 20);
        let other = pool.take_share(two, MIB, 3).unwrap();
        assert_eq!(pool.held_bytes(two), 1 << 20);
        assert_eq!(pool.take_share(one, 4096, 3).err(), Some(Short::Share));
        held.clear();
        assert_eq!(pool.held_bytes(one), 0);
        assert!(pool.take_share(one, MIB, 3).is_ok());
        drop(other);
        assert_eq!(pool.free_bytes(), 32 << 20);
    }

    #[test]
    fn whoever_holds_nothing_has_what_is_free() {
        let pool = pool(2 << 20);
        let [one, two] = [(); 2].map(|()| pool.open_account());
        let all = pool.take_share(one, 2 * MIB, 3).unwrap();
        assert_eq!(pool.take_share(two, 1, 3).err(), Some(Short::Memory));
        drop(all);
        let _one = pool.take_share(one, MIB, 3).unwrap();
        let _two = pool.take_share(two, MIB, 3).unwrap();
        assert_eq!(pool.take_share(one, 1, 3).err(), Some(Short::Share));
    }

    #[test]
    fn three_transfers_are_two_of_one_account_and_one_of_another() {
        let pool = pool(3 << 20);
        let [one, two] = [(); 2].map(|()| pool.open_account());
        let _first = pool.take_share(one, MIB, 3).unwrap();
        let _second = pool.take_share(one, MIB, 3).unwrap();
        assert_eq!(pool.take_share(one, MIB, 3).err(), Some(Short::Share));
        assert!(pool.take_share(two, MIB, 3).is_ok());
    }

    #[test]
    fn an_account_is_used_again_when_it_holds_nothing() {
        let pool = pool(1 << 20);
        let one = pool.open_account();
        let held = pool.take_share(one, 4096, 3).unwrap();
        pool.close_account(one);
        let two = pool.open_account();
        assert_ne!(one, two, "it still holds something");
        drop(held);
        assert_eq!(pool.open_account(), one);
        pool.close_account(Account::COMMON);
        assert_ne!(pool.open_account(), Account::COMMON);
    }

    #[test]
    #[should_panic(expected = "leaves a buffer")]
    fn copying_past_the_end_panics() {
        pool(8192).take(100).unwrap().copy_from(99, &[0, 0]);
    }

    #[test]
    fn a_lease_ends_with_the_last_of_its_parts() {
        let pool = pool(1 << 20);
        let mut whole = pool.take(8192).unwrap();
        let part = whole.part(100..110).unwrap();
        let again = part.part(5..10).unwrap();
        assert!(part.part(5..11).is_none(), "it leaves the part");
        assert_eq!((again.addr() - whole.addr(), again.len_bytes()), (105, 5));
        whole.copy_from(105, b"again");
        let mut out = [0; 5];
        again.copy_to(0, &mut out);
        assert_eq!(&out, b"again");
        for held in [whole, part] {
            drop(held);
            assert_eq!(pool.free_bytes(), (1 << 20) - 8192);
        }
        drop(again);
        assert_eq!(pool.free_bytes(), 1 << 20);
        let next = pool.take(8192).unwrap();
        drop(next);
        assert_eq!(pool.free_bytes(), 1 << 20);
    }

    #[test]
    fn the_slab_outlives_its_pool_while_a_buffer_lives() {
        let pool = pool(1 << 20);
        let mut buffer = pool.take(4096).unwrap();
        drop(pool);
        buffer.copy_from(0, b"still here");
        let mut out = [0; 10];
        buffer.copy_to(0, &mut out);
        assert_eq!(&out, b"still here");
    }
}
