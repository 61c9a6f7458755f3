//! Attempts to connect to several addresses, staggered (RFC 8305 5).

use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use ::tokio::time::{Instant, Sleep, sleep_until};

use crate::error::Error;
use crate::resolve::{ATTEMPT_DELAY, no_address};

/// Returns the first connection that `connect` makes to one of `addresses`, and gives up the other attempts.
///
/// # Errors
/// The error of the attempt that failed last; there is no address.
pub(super) async fn first_of<T, F>(
    addresses: Vec<SocketAddr>,
    connect: impl Fn(SocketAddr) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    match addresses[..] {
        [] => return Err(no_address()),
        [only] => return connect(only).await,
        _ => {}
    }
    let mut race = Race {
        addresses: addresses.into_iter(),
        attempts: Vec::new(),
        failed: None,
    };
    let mut next = pin!(sleep_until(Instant::now()));
    std::future::poll_fn(|cx| race.poll(cx, next.as_mut(), &connect)).await
}

/// Attempts that run at the same time.
struct Race<F> {
    /// Not tried yet.
    addresses: std::vec::IntoIter<SocketAddr>,
    attempts: Vec<Pin<Box<F>>>,
    failed: Option<Error>,
}

impl<T, F: Future<Output = Result<T, Error>>> Race<F> {
    /// Polls the attempts; begins the next one when `next` is over, or when one has failed.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut next: Pin<&mut Sleep>,
        connect: &impl Fn(SocketAddr) -> F,
    ) -> Poll<Result<T, Error>> {
        loop {
            let before = self.attempts.len();
            if let Some(connected) = self.poll_attempts(cx) {
                return Poll::Ready(Ok(connected));
            }
            let has_failed = self.attempts.len() < before;
            if self.addresses.len() == 0 {
                return match self.attempts.is_empty() {
                    true => Poll::Ready(Err(self.failed.take().unwrap_or_else(no_address))),
                    false => Poll::Pending,
                };
            }
            if !has_failed && next.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let address = self.addresses.next();
            self.attempts
                .extend(address.map(|to| Box::pin(connect(to))));
            next.as_mut().reset(Instant::now() + ATTEMPT_DELAY);
        }
    }

    fn poll_attempts(&mut self, cx: &mut Context<'_>) -> Option<T> {
        let mut connected = None;
        let Self {
            attempts, failed, ..
        } = self;
        attempts.retain_mut(|attempt| match attempt.as_mut().poll(cx) {
            Poll::Pending => true,
            Poll::Ready(Ok(stream)) => {
                connected.get_or_insert(stream);
                false
            }
            Poll::Ready(Err(error)) => {
                *failed = Some(error);
                false
            }
        });
        connected
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Mutex;

    use super::*;
    use crate::error::ErrorKind;

    fn addresses(ports: &[u16]) -> Vec<SocketAddr> {
        ports
            .iter()
            .map(|port| ([10, 0, 0, 1], *port).into())
            .collect()
    }

    #[::tokio::test]
    async fn a_silent_address_does_not_hold_up_the_next_one_and_a_failed_one_less() {
        let tried = Mutex::new(Vec::new());
        let connect = |to: SocketAddr| {
            tried.lock().expect("no panic").push(to.port());
            async move {
                match to.port() {
                    1 => pending().await,
                    2 => Err(Error::no_answer()),
                    port => Ok(port),
                }
            }
        };
        let connected = first_of(addresses(&[1, 2, 3, 4]), connect).await;
        assert_eq!(connected.ok(), Some(3));
        assert_eq!(*tried.lock().expect("no panic"), [1, 2, 3]);
    }

    #[::tokio::test]
    async fn without_a_connection_the_last_failure_is_the_error() {
        let refuse = |_| async { Err::<(), _>(Error::no_answer()) };
        let failed = first_of(addresses(&[1, 2]), refuse).await;
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::TimedOut);
        let failed = first_of(Vec::new(), refuse).await;
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
