//! One kind of object, listed and watched.

use crate::model::{Interner, Kind, SOCKET_TRANSLATION};
use crate::source::{Event, Object, Raw};
use ::kube::runtime::{WatchStreamExt, watcher};
use ::kube::{Api, Resource};
use futures::StreamExt;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::pin::pin;
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, error::SendError};

/// How to follow one kind.
pub(super) struct Watch<'a> {
    pub(super) config: watcher::Config,
    pub(super) streaming: bool,
    pub(super) events: &'a mpsc::Sender<Event>,
    /// Told of every error: the server may be lost.
    pub(super) trouble: &'a Notify,
}

impl Watch<'_> {
    /// Follows the kind; returns when the receiver is gone.
    pub(super) async fn run<K>(&self, api: Api<K>)
    where
        K: Raw + Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        // Told once until the next success.
        let mut forbidden = false;
        let mut feed = Feed {
            interner: Interner::default(),
            events: self.events.clone(),
            listed: 0,
        };
        let mut streaming = self.streaming;
        loop {
            let config = if streaming {
                self.config.clone().streaming_lists()
            } else {
                self.config.clone()
            };
            let mut stream = pin!(watcher(api.clone(), config).default_backoff());
            while let Some(item) = stream.next().await {
                match item {
                    Ok(event) => {
                        // Told at the beginning of each try.
                        forbidden &= matches!(event, watcher::Event::Init);
                        if feed.forward(event).await.is_err() {
                            return;
                        }
                    }
                    Err(error) if streaming && refuses_streaming(&error) => {
                        tracing::info!(
                            kind = K::KIND.as_str(),
                            "API server has no streaming lists, using pages"
                        );
                        streaming = false;
                        break;
                    }
                    Err(error) => {
                        let optional = for_opt_outs(K::KIND);
                        if optional && is_forbidden(&error) {
                            if !forbidden {
                                tell_forbidden(K::KIND, &error);
                            }
                            forbidden = true;
                        } else {
                            let error = &error as &dyn std::error::Error;
                            tracing::warn!(
                                kind = K::KIND.as_str(),
                                error,
                                "watch failed, trying again"
                            );
                            self.trouble.notify_one();
                        }
                        let event = Event::Unavailable(K::KIND);
                        if optional && self.events.send(event).await.is_err() {
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// Turns raw objects into ours and sends them.
struct Feed {
    interner: Interner,
    events: mpsc::Sender<Event>,
    /// Objects in the list under way.
    listed: usize,
}

impl Feed {
    async fn forward<K: Raw>(&mut self, event: watcher::Event<K>) -> Result<(), SendError<Event>> {
        match event {
            watcher::Event::Init => {
                self.listed = 0;
                self.events.send(Event::Begin(K::KIND)).await
            }
            watcher::Event::InitApply(raw) => {
                self.listed += 1;
                self.apply(raw).await
            }
            watcher::Event::InitDone => {
                tracing::info!(
                    kind = K::KIND.as_str(),
                    objects = self.listed,
                    "list is complete"
                );
                self.events.send(Event::Done(K::KIND)).await
            }
            watcher::Event::Apply(raw) => self.apply(raw).await,
            watcher::Event::Delete(raw) => match raw.name(&mut self.interner) {
                Some(name) => self.events.send(Event::Delete(K::KIND, name)).await,
                None => Ok(()),
            },
        }
    }

    async fn apply<K: Raw>(&mut self, raw: K) -> Result<(), SendError<Event>> {
        // The API server sends no object without a name.
        let Some(name) = raw.name(&mut self.interner) else {
            return Ok(());
        };
        let (object, warnings): (Option<Object>, _) =
            raw.into_object(name.clone(), &mut self.interner);
        for warning in warnings {
            self.events.send(Event::Warning(warning)).await?;
        }
        let event = object.map_or_else(|| Event::Delete(K::KIND, name), Event::Apply);
        self.events.send(event).await
    }
}

/// Whether the kind is watched for opt-outs alone, and can be done without.
fn for_opt_outs(kind: Kind) -> bool {
    matches!(kind, Kind::Pod | Kind::Namespace)
}

/// Whether we lack the right.
fn is_forbidden(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(error)
    | watcher::Error::WatchStartFailed(error)
    | watcher::Error::WatchFailed(error)) = error
    else {
        return false;
    };
    matches!(error, ::kube::Error::Api(status) if status.code == 403)
}

fn tell_forbidden(kind: Kind, error: &watcher::Error) {
    let error = error as &dyn std::error::Error;
    tracing::warn!(
        kind = kind.as_str(),
        error,
        "not allowed to list and watch these: labels {SOCKET_TRANSLATION} are not followed until it is; all else goes on"
    );
}

/// Whether the server understood the wish for a streaming list and refuses it:
/// 422 from API servers with the feature gate off, others from proxies.
fn refuses_streaming(error: &watcher::Error) -> bool {
    let watcher::Error::WatchStartFailed(::kube::Error::Api(status)) = error else {
        return false;
    };
    matches!(status.code, 400 | 404 | 405 | 406 | 415 | 422)
}
