//! A program that gives, takes and waits, as tests need it.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use capstan_rpc_server::limits::REPLY_MAX_BYTES;
use capstan_rpc_server::{Call, ConnectionNumber, Data, Outcome, Program};
use capstan_rpcrdma::limits::DATA_MAX_BYTES;
use capstan_rpcrdma::xdr::{Reader, Writer};

pub(crate) use capstan_nfs_client::PATIENCE;

/// Answers with nothing.
pub(crate) const NULL: u32 = 0;
/// What is answered to an address that is not admitted.
pub(crate) const REFUSED: u32 = 0xDEAD;
/// Answers with the length and the sum of the bytes of its data.
pub(crate) const TAKE: u32 = 1;
/// Answers with so many bytes of data for each length of its arguments.
pub(crate) const GIVE: u32 = 2;
/// Answers with nothing once the gate is open.
pub(crate) const WAIT: u32 = 3;
/// Is not answered.
pub(crate) const SILENT: u32 = 4;
/// Panics.
pub(crate) const PANIC: u32 = 5;
/// Answers with as many bytes inline.
pub(crate) const GIVE_INLINE: u32 = 6;

#[derive(Debug, Default)]
pub(crate) struct Tester {
    state: Mutex<State>,
    changed: Condvar,
    pub(crate) refuses: AtomicBool,
    pub(crate) carried_out: AtomicUsize,
    /// What gives data is carried out at once.
    pub(crate) gives_at_once: AtomicBool,
    /// Threads that have carried out calls.
    threads: Mutex<HashSet<ThreadId>>,
    /// How many threads that are stuck others may take the places of.
    pub(crate) replaced_max: AtomicUsize,
    /// What was said of the oldest call that waits.
    pub(crate) waits_since: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct State {
    is_open: bool,
    /// Calls that wait at the gate.
    waiting: usize,
    ended: Vec<ConnectionNumber>,
    /// Connections with a call under way.
    busy: Vec<ConnectionNumber>,
}

impl Tester {
    pub(crate) fn new() -> Arc<Self> {
        let tester = Self::default();
        tester.replaced_max.store(usize::MAX, Ordering::Relaxed);
        Arc::new(tester)
    }

    /// How many calls wait at the gate.
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().unwrap().waiting
    }

    pub(crate) fn open_gate(&self) {
        self.state.lock().unwrap().is_open = true;
        self.changed.notify_all();
    }

    /// Waits until so many calls wait at the gate.
    pub(crate) fn until_waiting(&self, count: usize) {
        self.until(|state| state.waiting == count);
    }

    /// Waits until so many connections have ended.
    pub(crate) fn until_ended(&self, count: usize) {
        self.until(|state| state.ended.len() == count);
    }

    /// How many threads have carried out calls.
    pub(crate) fn threads(&self) -> usize {
        self.threads.lock().unwrap().len()
    }

    pub(crate) fn forget_threads(&self) {
        self.threads.lock().unwrap().clear();
    }

    pub(crate) fn ended(&self) -> usize {
        self.state.lock().unwrap().ended.len()
    }

    fn until(&self, so: impl Fn(&State) -> bool) {
        let state = self.state.lock().unwrap();
        let waited = self
            .changed
            .wait_timeout_while(state, PATIENCE, |state| !so(state));
        let (state, timeout) = waited.unwrap();
        assert!(!timeout.timed_out(), "it does not happen: {state:?}");
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    fn wait(&self) {
        self.change(|state| state.waiting += 1);
        self.until(|state| state.is_open);
        self.change(|state| state.waiting -= 1);
    }
}

/// The byte of data at an index.
pub(crate) fn byte_at(index: usize) -> u8 {
    u8::try_from(index % 251).unwrap()
}

/// So many bytes of data.
pub(crate) fn data(length: usize) -> Vec<u8> {
    (0..length).map(byte_at).collect()
}

/// The sum that tells one data from other.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .enumerate()
        .fold(0, |sum: u64, (index, &byte)| {
            let at = u64::try_from(index).unwrap() + 1;
            sum.wrapping_add(at.wrapping_mul(u64::from(byte)))
        })
}

impl Program for Tester {
    fn call(&self, call: &Call<'_>, reply: &mut Writer<'_>) -> Outcome {
        let mut reader = call.reader;
        let (Ok(xid), Ok(kind)) = (reader.u32("xid"), reader.u32("kind")) else {
            return Outcome::End;
        };
        self.threads.lock().unwrap().insert(thread::current().id());
        self.change(|state| state.busy.push(call.connection));
        reply.u32(xid).unwrap();
        reply.u32(1).unwrap();
        let carried_out = self.carry_out(kind, &mut reader, call, reply);
        // What cannot be read, as of a damaged call.
        let outcome = carried_out.unwrap_or(Outcome::End);
        self.carried_out.fetch_add(1, Ordering::Relaxed);
        self.change(|state| {
            let at = state.busy.iter().position(|&busy| busy == call.connection);
            state.busy.remove(at.unwrap());
        });
        outcome
    }

    fn at_once(&self, call: &Call<'_>, reply: &mut Writer<'_>) -> Option<Outcome> {
        let mut reader = call.reader;
        let kind = reader.u32("xid").and_then(|_| reader.u32("kind"));
        let gives = matches!(kind, Ok(GIVE | GIVE_INLINE));
        if gives && self.gives_at_once.load(Ordering::Relaxed) {
            return Some(self.call(call, reply));
        }
        // What would wait may have begun.
        reply.u32(0xBAD_BAD).unwrap();
        None
    }

    fn admits(&self, _peer: SocketAddr) -> Result<(), String> {
        let refuses = self.refuses.load(Ordering::Relaxed);
        let why = || "it is refused".to_owned();
        (!refuses).then_some(()).ok_or_else(why)
    }

    fn refused(&self, call: &Call<'_>, reply: &mut Writer<'_>) -> Outcome {
        let mut reader = call.reader;
        let Ok(xid) = reader.u32("xid") else {
            return Outcome::End;
        };
        reply.u32(xid).unwrap();
        reply.u32(1).unwrap();
        reply.u32(REFUSED).unwrap();
        Outcome::Reply
    }

    fn slow(&self, threads: &[(ThreadId, Duration)]) -> usize {
        threads.len().min(self.replaced_max.load(Ordering::Relaxed))
    }

    fn waits_since(&self, since: Option<Instant>) {
        *self.waits_since.lock().unwrap() = since;
    }

    fn ended(&self, connection: ConnectionNumber) {
        self.change(|state| {
            assert!(!state.busy.contains(&connection), "a call is under way");
            state.ended.push(connection);
        });
    }
}

impl Tester {
    fn carry_out(
        &self,
        kind: u32,
        reader: &mut Reader<'_>,
        call: &Call<'_>,
        reply: &mut Writer<'_>,
    ) -> Option<Outcome> {
        match kind {
            NULL => {}
            TAKE => {
                let item = reader.data_item("data", DATA_MAX_BYTES).ok()?;
                let bytes = match call.arguments.data(&item)? {
                    Data::Inline(bytes) => bytes.to_vec(),
                    Data::Pulled(span, length) => {
                        let mut bytes = vec![0; length];
                        span.raw().copy_to(&mut bytes);
                        bytes
                    }
                };
                reply.u32(u32::try_from(bytes.len()).unwrap()).unwrap();
                reply.u64(sum(&bytes)).unwrap();
            }
            GIVE => {
                for _ in 0..reader.u32("count").ok()? {
                    let length = reader.u32("length").ok()?;
                    let length = usize::try_from(length).unwrap();
                    if length > REPLY_MAX_BYTES {
                        return None;
                    }
                    match call.results.next(reply) {
                        Some(span) if length <= span.len_bytes() => {
                            span.copy_from(0, &data(length));
                            reply.reduced(u32::try_from(length).unwrap()).ok()?;
                        }
                        _ => reply.opaque(&data(length)).ok()?,
                    }
                }
                reply.u32(0xE0E0_E0E0).ok()?;
            }
            GIVE_INLINE => {
                let length = reader.u32("length").ok()?;
                let length = usize::try_from(length).unwrap();
                if length > REPLY_MAX_BYTES {
                    return None;
                }
                reply.opaque(&data(length)).ok()?;
            }
            WAIT => self.wait(),
            SILENT => return Some(Outcome::None),
            PANIC => {
                self.change(|state| state.busy.retain(|&busy| busy != call.connection));
                panic!("a test asked for it");
            }
            _ => return None,
        }
        Some(Outcome::Reply)
    }
}
