//! One value from the driver's thread to a waiting thread or task, without a runtime.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

enum State<T> {
    Waiting(Option<Waker>),
    Done(T),
    /// The promise was dropped, or the value taken.
    Gone,
}

type Cell<T> = Arc<Mutex<State<T>>>;

/// The side that gives the value. Dropping it tells the other side that none will come.
pub(crate) struct Promise<T>(Option<Cell<T>>);

/// The side that waits: a future of the value, `None` when none will come.
#[derive(Clone)]
pub(crate) struct Answer<T>(Cell<T>);

pub(crate) fn oneshot<T>() -> (Promise<T>, Answer<T>) {
    let cell = Arc::new(Mutex::new(State::Waiting(None)));
    (Promise(Some(Arc::clone(&cell))), Answer(cell))
}

impl<T> Promise<T> {
    pub(crate) fn fulfil(mut self, value: T) {
        if let Some(cell) = self.0.take() {
            finish(&cell, State::Done(value));
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if let Some(cell) = self.0.take() {
            finish(&cell, State::Gone);
        }
    }
}

fn finish<T>(cell: &Cell<T>, state: State<T>) {
    // The lock is held for a few instructions and never while waiting, so the driver does not wait
    // for any caller here; a panic inside is impossible, so poison means nothing.
    let previous = {
        let mut guard = cell.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *guard, state)
    };
    if let State::Waiting(Some(waker)) = previous {
        waker.wake();
    }
}

impl<T> Future for Answer<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *guard {
            State::Waiting(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            State::Done(_) | State::Gone => match std::mem::replace(&mut *guard, State::Gone) {
                State::Done(value) => Poll::Ready(Some(value)),
                State::Waiting(_) | State::Gone => Poll::Ready(None),
            },
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, parked while it waits.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{block_on, oneshot};

    #[test]
    fn a_value_crosses_threads() {
        let (promise, answer) = oneshot();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            promise.fulfil(7);
        });
        assert_eq!(block_on(answer), Some(7));
        thread.join().unwrap();
    }

    #[test]
    fn a_dropped_promise_is_told() {
        let (promise, answer) = oneshot::<u8>();
        drop(promise);
        assert_eq!(block_on(answer), None);
    }
}
