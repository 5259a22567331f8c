//! A namespace as a volume of bytes, for any thread.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::controller::{IoData, Message, Shared};
use crate::driver::{Io, Op};
use crate::error::IoError;
use crate::host::NamespaceInfo;
use crate::oneshot::{Answer, block_on, oneshot};

/// Bytes of one I/O handed to the driver. Larger reads and writes are a few of these at a time.
const CHUNK_BYTES: u64 = 1 << 20;
/// Chunks of one read or write that are in progress at once.
const CHUNKS_AHEAD: usize = 4;

/// A namespace to read and write, in bytes. Clones are handles of the same; any thread may use
/// them. Offsets and lengths are multiples of [`Volume::lba_bytes`].
///
/// While the controller is lost, I/O waits; it fails when the controller is gone for good. An I/O
/// whose future is dropped is carried out all the same.
#[derive(Clone)]
pub struct Volume {
    shared: Arc<Shared>,
    namespace: Arc<NamespaceInfo>,
    volatile_write_cache: bool,
}

impl Volume {
    pub(crate) fn new(
        shared: Arc<Shared>,
        namespace: NamespaceInfo,
        volatile_write_cache: bool,
    ) -> Self {
        Self {
            shared,
            namespace: Arc::new(namespace),
            volatile_write_cache,
        }
    }

    /// The namespace as it was when this volume was opened.
    #[must_use]
    pub fn namespace(&self) -> &NamespaceInfo {
        &self.namespace
    }

    /// Size in bytes when it was opened; a namespace that has grown since is opened anew.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.namespace.size_bytes()
    }

    /// Bytes of an LBA.
    #[must_use]
    pub fn lba_bytes(&self) -> u32 {
        self.namespace.lba_bytes
    }

    /// Whether writes are durable only after [`Volume::flush`].
    #[must_use]
    pub fn has_volatile_write_cache(&self) -> bool {
        self.volatile_write_cache
    }

    /// Reads `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`IoError`]: not a whole number of LBAs, outside the namespace, or what the controller says.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
        let mut chunks = self.chunks(offset, len as u64)?;
        let mut bytes = Vec::with_capacity(len);
        let mut ahead = VecDeque::with_capacity(CHUNKS_AHEAD);
        loop {
            while ahead.len() < CHUNKS_AHEAD
                && let Some((slba, nlb)) = chunks.next()
            {
                let len_bytes = nlb * self.lba_bytes();
                let data = IoData::In(Vec::with_capacity(len_bytes as usize), len_bytes);
                ahead.push_back(self.start(Op::Read { slba, nlb }, data).await?);
            }
            let Some(next) = ahead.pop_front() else {
                return Ok(bytes);
            };
            let chunk = finished(next).await?;
            if bytes.is_empty() && ahead.is_empty() {
                bytes = chunk;
            } else {
                bytes.extend_from_slice(&chunk);
            }
        }
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// As [`Volume::read`]. Part of the data may have been written when the controller refuses the
    /// rest; nothing, when the range leaves the namespace.
    pub async fn write(&self, offset: u64, data: impl Into<Bytes>) -> Result<(), IoError> {
        self.write_with(offset, data.into(), |slba, nlb| Op::Write {
            slba,
            nlb,
            fua: false,
        })
        .await
    }

    /// Writes `data` at `offset`; complete only when it is on stable media.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub async fn write_fua(&self, offset: u64, data: impl Into<Bytes>) -> Result<(), IoError> {
        self.write_with(offset, data.into(), |slba, nlb| Op::Write {
            slba,
            nlb,
            fua: true,
        })
        .await
    }

    /// Compares what is at `offset` with `data`.
    ///
    /// # Errors
    /// As [`Volume::read`]; a difference is a status of Compare Failure.
    pub async fn compare(&self, offset: u64, data: impl Into<Bytes>) -> Result<(), IoError> {
        self.write_with(offset, data.into(), |slba, nlb| Op::Compare { slba, nlb })
            .await
    }

    /// Makes every write that has completed durable.
    ///
    /// # Errors
    /// What the controller says.
    pub async fn flush(&self) -> Result<(), IoError> {
        self.simple(Op::Flush).await
    }

    /// Sets `len` bytes at `offset` to zero; the controller may deallocate them.
    ///
    /// # Errors
    /// As [`Volume::read`].
    pub async fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.ranges(offset, len, |slba, nlb| Op::WriteZeroes {
            slba,
            nlb,
            may_deallocate: true,
            fua: false,
        })
        .await
    }

    /// Tells that `len` bytes at `offset` are not needed any more. What a later read of them
    /// returns is the controller's choice.
    ///
    /// # Errors
    /// As [`Volume::read`].
    pub async fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.ranges(offset, len, |slba, nlb| Op::Discard { slba, nlb })
            .await
    }

    /// The same operations, blocking.
    #[must_use]
    pub fn blocking(&self) -> BlockingVolume {
        BlockingVolume(self.clone())
    }

    async fn write_with(
        &self,
        offset: u64,
        mut data: Bytes,
        op: impl Fn(u64, u32) -> Op,
    ) -> Result<(), IoError> {
        let mut ahead = VecDeque::with_capacity(CHUNKS_AHEAD);
        let mut chunks = self.chunks(offset, data.len() as u64)?;
        loop {
            while ahead.len() < CHUNKS_AHEAD
                && let Some((slba, nlb)) = chunks.next()
            {
                let chunk = data.split_to((nlb * self.lba_bytes()) as usize);
                ahead.push_back(self.start(op(slba, nlb), IoData::Out(chunk)).await?);
            }
            let Some(next) = ahead.pop_front() else {
                return Ok(());
            };
            finished(next).await?;
        }
    }

    /// An operation without data on a range of any length.
    async fn ranges(
        &self,
        offset: u64,
        len: u64,
        op: impl Fn(u64, u32) -> Op,
    ) -> Result<(), IoError> {
        let (mut slba, mut blocks) = self.blocks(offset, len)?;
        while blocks > 0 {
            let nlb = u32::try_from(blocks).unwrap_or(u32::MAX);
            self.simple(op(slba, nlb)).await?;
            slba += u64::from(nlb);
            blocks -= u64::from(nlb);
        }
        Ok(())
    }

    async fn simple(&self, op: Op) -> Result<(), IoError> {
        let answer = self.start(op, IoData::None).await?;
        finished(answer).await.map(drop)
    }

    /// First LBA and blocks of a range of bytes.
    fn blocks(&self, offset: u64, len: u64) -> Result<(u64, u64), IoError> {
        let lba_bytes = u64::from(self.lba_bytes());
        let check = |what, value: u64| {
            if value.is_multiple_of(lba_bytes) {
                Ok(value / lba_bytes)
            } else {
                Err(IoError::Invalid {
                    what,
                    value,
                    expected: "a multiple of the namespace's LBA size",
                })
            }
        };
        let (slba, blocks) = (check("offset", offset)?, check("length", len)?);
        // All of it, before the first of its chunks is carried out.
        if slba.saturating_add(blocks) > self.namespace.nsze_lbas {
            return Err(IoError::Invalid {
                what: "offset and length together",
                value: offset.saturating_add(len),
                expected: "at most the bytes of the namespace",
            });
        }
        Ok((slba, blocks))
    }

    /// A range of bytes in chunks: first LBA and blocks of each.
    fn chunks(
        &self,
        offset: u64,
        len: u64,
    ) -> Result<impl Iterator<Item = (u64, u32)> + use<>, IoError> {
        let (mut slba, mut blocks) = self.blocks(offset, len)?;
        let most = (CHUNK_BYTES / u64::from(self.lba_bytes())).max(1);
        Ok(std::iter::from_fn(move || {
            let nlb = blocks.min(most);
            let chunk = (slba, u32::try_from(nlb).unwrap_or(u32::MAX));
            slba += nlb;
            blocks -= nlb;
            (nlb > 0).then_some(chunk)
        }))
    }

    /// Hands an I/O to the driver, waiting while its mailbox is full.
    fn start(&self, op: Op, data: IoData) -> Starting<'_> {
        let (done, answer) = oneshot();
        let io = Io {
            nsid: self.namespace.nsid,
            op,
        };
        Starting {
            shared: &self.shared,
            message: Some(Message::Io { io, data, done }),
            answer: Some(answer),
        }
    }
}

type IoAnswer = Answer<Result<Vec<u8>, IoError>>;

/// An I/O on its way into the mailbox.
struct Starting<'a> {
    shared: &'a Shared,
    message: Option<Message>,
    answer: Option<IoAnswer>,
}

impl Future for Starting<'_> {
    type Output = Result<IoAnswer, IoError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(message) = self.message.take() {
            match self.shared.offer(message, cx.waker()) {
                Ok(()) => {}
                Err(Some(back)) => {
                    self.message = Some(back);
                    return Poll::Pending;
                }
                Err(None) => return Poll::Ready(Err(IoError::Closed)),
            }
        }
        Poll::Ready(self.answer.take().ok_or(IoError::Closed))
    }
}

async fn finished(answer: IoAnswer) -> Result<Vec<u8>, IoError> {
    answer.await.unwrap_or(Err(IoError::Closed))
}

/// [`Volume`], blocking the calling thread.
#[derive(Clone)]
pub struct BlockingVolume(Volume);

impl BlockingVolume {
    /// The volume behind it.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.0
    }

    /// Fills `bytes` from `offset`.
    ///
    /// # Errors
    /// As [`Volume::read`].
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        let data = block_on(self.0.read(offset, bytes.len()))?;
        bytes.copy_from_slice(&data);
        Ok(())
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        block_on(self.0.write(offset, Bytes::copy_from_slice(bytes)))
    }

    /// Writes `bytes` at `offset`; complete only when they are on stable media.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn write_fua(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        block_on(self.0.write_fua(offset, Bytes::copy_from_slice(bytes)))
    }

    /// Compares what is at `offset` with `bytes`.
    ///
    /// # Errors
    /// As [`Volume::compare`].
    pub fn compare(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        block_on(self.0.compare(offset, Bytes::copy_from_slice(bytes)))
    }

    /// Makes every write that has completed durable.
    ///
    /// # Errors
    /// As [`Volume::flush`].
    pub fn flush(&self) -> Result<(), IoError> {
        block_on(self.0.flush())
    }

    /// Sets `len` bytes at `offset` to zero.
    ///
    /// # Errors
    /// As [`Volume::write_zeroes`].
    pub fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), IoError> {
        block_on(self.0.write_zeroes(offset, len))
    }

    /// Tells that `len` bytes at `offset` are not needed any more.
    ///
    /// # Errors
    /// As [`Volume::discard`].
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        block_on(self.0.discard(offset, len))
    }
}
