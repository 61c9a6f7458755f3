//! A connection to the place of a file, on its way: TCP, the tunnel of a proxy, the handshake of TLS.

use std::time::{Duration, Instant};

use devmem_tcp::{Netdev, Stream};

use super::location::Location;
use super::tunnel::Tunnel;
use crate::dial::race::Race;
use crate::error::LoadError;
use crate::tls::{TlsClient, TlsStream};
use crate::transport::Transport;

/// A connection that is being made. Nothing waits but `ConnectionAttempt::wait`.
#[derive(Debug)]
pub struct ConnectionAttempt<'a> {
    stage: Stage<'a>,
    tunnel: Option<Tunnel>,
    /// Settings, and the name of the server.
    tls: Option<(TlsClient, String)>,
    /// How long the stages after TCP may take together.
    limit: Duration,
    end: Option<Instant>,
}

#[derive(Debug)]
enum Stage<'a> {
    Tcp(Box<Race<'a>>),
    Tunnel(Box<Stream>, Box<Tunnel>),
    Handshake(Box<TlsStream>),
    Over,
}

/// What a stage has come to.
enum Stepped<'a> {
    Waits(Stage<'a>),
    Next(Stage<'a>),
    Done(Transport),
}

impl<'a> ConnectionAttempt<'a> {
    /// Prepares a connection to the end of a way.
    pub fn new(nic: &'a Netdev, location: &Location, limit: Duration) -> Self {
        let (request, url) = (&location.request, location.request.url());
        let tls = || (request.tls_client().clone(), url.host().to_owned());
        Self {
            stage: Stage::Tcp(Box::new(Race::new(nic, &location.addresses))),
            tunnel: Tunnel::of(request),
            tls: url.is_https().then(tls),
            limit,
            end: None,
        }
    }

    /// Returns the outcome, `None` while there is none.
    pub fn poll(&mut self) -> Option<Result<Transport, LoadError>> {
        loop {
            let stage = std::mem::replace(&mut self.stage, Stage::Over);
            match self.step(stage) {
                Err(error) => return Some(Err(error)),
                Ok(Stepped::Done(transport)) => return Some(Ok(transport)),
                Ok(Stepped::Next(stage)) => self.stage = stage,
                Ok(Stepped::Waits(stage)) => {
                    self.stage = stage;
                    return self.late().map(Err);
                }
            }
        }
    }

    fn step(&mut self, stage: Stage<'a>) -> Result<Stepped<'a>, LoadError> {
        Ok(match stage {
            Stage::Tcp(mut race) => match race.poll() {
                Some(stream) => {
                    let stream = stream?;
                    stream.set_nonblocking(true);
                    self.end = Some(Instant::now() + self.limit);
                    match self.tunnel.take() {
                        Some(tunnel) => {
                            Stepped::Next(Stage::Tunnel(Box::new(stream), Box::new(tunnel)))
                        }
                        None => self.behind_tunnel(stream)?,
                    }
                }
                None => Stepped::Waits(Stage::Tcp(race)),
            },
            Stage::Tunnel(mut stream, mut tunnel) => match tunnel.poll(&mut stream)? {
                true => self.behind_tunnel(*stream)?,
                false => Stepped::Waits(Stage::Tunnel(stream, tunnel)),
            },
            Stage::Handshake(mut tls) => match tls.poll_handshake()? {
                true => Stepped::Done(Transport::Tls(tls)),
                false => Stepped::Waits(Stage::Handshake(tls)),
            },
            Stage::Over => Stepped::Waits(Stage::Over),
        })
    }

    /// Goes on with a stream to the server.
    fn behind_tunnel(&mut self, stream: Stream) -> Result<Stepped<'a>, LoadError> {
        Ok(match &self.tls {
            None => Stepped::Done(Transport::Tcp(Box::new(stream))),
            Some((client, host)) => {
                let tls = TlsStream::new(stream, client, host)?;
                Stepped::Next(Stage::Handshake(Box::new(tls)))
            }
        })
    }

    /// Returns the error of a server or a proxy that takes too long.
    fn late(&self) -> Option<LoadError> {
        let limit = self.limit;
        if self.end.is_none_or(|end| Instant::now() < end) {
            return None;
        }
        let (host, problem) = match &self.stage {
            Stage::Tunnel(_, tunnel) => (
                tunnel.proxy().to_owned(),
                format!("the proxy has not answered within {limit:?}"),
            ),
            Stage::Handshake(_) => {
                let host = self.tls.as_ref().map(|(_, host)| host.clone());
                let problem = format!("the handshake of TLS was not complete within {limit:?}");
                (host.unwrap_or_default(), problem)
            }
            Stage::Tcp(_) | Stage::Over => return None,
        };
        Some(LoadError::Broken {
            host,
            problem: problem.into(),
        })
    }

    /// Waits until [`poll`](Self::poll) may have something to do, for `longest` at most.
    ///
    /// # Errors
    /// The attempts to connect cannot be waited for.
    pub(crate) fn wait(&mut self, longest: Duration) -> Result<(), LoadError> {
        match &mut self.stage {
            Stage::Tcp(race) => race
                .wait(longest)
                .map_err(|errno| LoadError::Wait(std::io::Error::from(errno))),
            Stage::Tunnel(stream, _) => {
                wait_for(stream, longest);
                Ok(())
            }
            Stage::Handshake(tls) => {
                wait_for(tls.stream_mut(), longest);
                Ok(())
            }
            Stage::Over => Ok(()),
        }
    }
}

/// Waits for bytes of a stream. What a fault of it means is seen by the next receive.
fn wait_for(stream: &mut Stream, longest: Duration) {
    stream.set_timeout(Some(longest));
    let _ = stream.peek(&mut [0]);
    stream.set_nonblocking(true);
}
