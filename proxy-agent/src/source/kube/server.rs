//! Which API server is used, and whether it still answers.

use super::KubeOptions;
use ::kube::config::{KubeConfigOptions, Kubeconfig};
use ::kube::{Client, Config};
use std::time::Duration;
use tokio::sync::Notify;

/// A connection that is not there by then will not come.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The longest silence in a response. Watches end after 290 s by themselves,
/// and their bookmarks come about once a minute; a list that hangs is noticed
/// by the probes first.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// How long a probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Pause between probes while all is well: as often as a kubelet renews its lease.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// Pause after a probe that failed.
const PROBE_RETRY: Duration = Duration::from_secs(1);

/// So many failed probes on end, and the server is lost. With the times above
/// a silent death is noticed within 21 s, a refused connection within 3 s.
const PROBE_FAILURES: u32 = 3;

/// Longest pause after all servers were tried in vain.
const ROUND_PAUSE_MAX: Duration = Duration::from_secs(5);

/// First version whose servers refuse a streaming list if they cannot do it;
/// older ones ignore the wish, and the list would never end (KEP-3157).
const STREAMING_SINCE_MINOR: u32 = 27;

/// Why no API server can be asked.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The kubeconfig is unusable.
    #[error("kubeconfig {path}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: ::kube::config::KubeconfigError,
    },
    /// No kubeconfig, no server, and not in a pod.
    #[error("not in a pod; give a kubeconfig file or the address of an API server")]
    NotInCluster(#[from] ::kube::config::InClusterError),
    /// The address of a server is none.
    #[error("address of an API server {address:?}: {why}")]
    Address {
        /// The address as given.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// The credentials or certificates are unusable.
    #[error("client for {address}")]
    Client {
        /// The server.
        address: String,
        /// What is wrong.
        source: Box<::kube::Error>,
    },
}

/// The API servers, one of which is next.
pub(super) struct Servers {
    configs: Vec<(String, Config)>,
    next: usize,
}

/// An API server that answered.
pub(super) struct Server {
    pub(super) address: String,
    pub(super) client: Client,
    /// Whether to ask for streaming lists.
    pub(super) streaming: bool,
}

impl Servers {
    /// Reads the configuration, and checks that a client can be made of it.
    pub(super) async fn load(options: &KubeOptions) -> Result<Self, ConfigError> {
        let mut configs = Vec::new();
        if options.servers.is_empty() {
            let config = base(options).await?.map_err(ConfigError::NotInCluster)?;
            configs.push((config.cluster_url.to_string(), config));
        }
        for address in &options.servers {
            let bad = |why: String| ConfigError::Address {
                address: address.clone(),
                why,
            };
            let full = match address.split_once("://") {
                Some(("https" | "http", _)) => address.clone(),
                None if !address.contains('/') => format!("https://{address}"),
                _ => return Err(bad("write https://address:port".into())),
            };
            let mut config = match base(options).await? {
                Ok(config) => config,
                // No credentials at all: a server that asks for none.
                Err(_) => Config::new(full.parse().map_err(|error| bad(format!("{error}")))?),
            };
            config.cluster_url = full.parse().map_err(|error| bad(format!("{error}")))?;
            if config.cluster_url.host().is_none() {
                return Err(bad("no host in it; write https://address:port".into()));
            }
            configs.push((full, config));
        }
        for (address, config) in &mut configs {
            config.connect_timeout = Some(CONNECT_TIMEOUT);
            config.read_timeout = Some(READ_TIMEOUT);
            config.reset_reader_on_write = true;
            client(address, config)?;
        }
        Ok(Self { configs, next: 0 })
    }

    /// Waits until a server answers, trying them in turn.
    pub(super) async fn connect(&mut self) -> Server {
        let mut pause = PROBE_RETRY;
        loop {
            for _ in 0..self.configs.len() {
                let (address, config) = &self.configs[self.next];
                match try_server(address, config).await {
                    Ok(server) => {
                        tracing::info!(server = %address, streaming = server.streaming, "using this API server");
                        return server;
                    }
                    Err(error) => {
                        tracing::warn!(server = %address, error, "API server does not answer")
                    }
                }
                self.advance();
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(ROUND_PAUSE_MAX);
        }
    }

    /// Makes the next server the one to try first.
    pub(super) fn advance(&mut self) {
        self.next = (self.next + 1) % self.configs.len();
    }
}

impl Server {
    /// Returns when the server has not answered for a while. `trouble` hurries
    /// the next look.
    pub(super) async fn lost(&self, trouble: &Notify) {
        let mut failures = 0;
        while failures < PROBE_FAILURES {
            if failures == 0 {
                tokio::select! {
                    () = tokio::time::sleep(PROBE_INTERVAL) => {}
                    () = trouble.notified() => {}
                }
            } else {
                tokio::time::sleep(PROBE_RETRY).await;
            }
            match probe(&self.client).await {
                Ok(_) => failures = 0,
                Err(error) => {
                    failures += 1;
                    tracing::warn!(server = %self.address, error, failures, "API server does not answer");
                }
            }
        }
    }
}

/// What the kubeconfig or the pod says.
async fn base(
    options: &KubeOptions,
) -> Result<Result<Config, ::kube::config::InClusterError>, ConfigError> {
    let Some(path) = &options.kubeconfig else {
        return Ok(Config::incluster());
    };
    let bad = |source| ConfigError::Kubeconfig {
        path: path.display().to_string(),
        source,
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(bad)?;
    Ok(Ok(Config::from_custom_kubeconfig(
        kubeconfig,
        &KubeConfigOptions::default(),
    )
    .await
    .map_err(bad)?))
}

fn client(address: &str, config: &Config) -> Result<Client, ConfigError> {
    Client::try_from(config.clone()).map_err(|source| ConfigError::Client {
        address: address.to_owned(),
        source: Box::new(source),
    })
}

/// A new client each time, so that no connection to the dead server is reused.
async fn try_server(address: &str, config: &Config) -> Result<Server, String> {
    let client = client(address, config).map_err(|error| error.to_string())?;
    let streaming = probe(&client).await?;
    Ok(Server {
        address: address.to_owned(),
        client,
        streaming,
    })
}

/// Asks for the version; whether streaming lists may be tried. Any answer is a
/// sign of life, also "forbidden".
async fn probe(client: &Client) -> Result<bool, String> {
    match tokio::time::timeout(PROBE_TIMEOUT, client.apiserver_version()).await {
        Err(_) => Err(format!("no answer within {} s", PROBE_TIMEOUT.as_secs())),
        Ok(Ok(version)) => {
            let digits: String = version
                .minor
                .chars()
                .take_while(char::is_ascii_digit)
                .collect();
            Ok(digits
                .parse()
                .is_ok_and(|minor: u32| minor >= STREAMING_SINCE_MINOR))
        }
        Ok(Err(::kube::Error::Api(_))) => Ok(false),
        Ok(Err(error)) => Err(error.to_string()),
    }
}
