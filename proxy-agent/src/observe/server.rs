//! The HTTP endpoints.

use super::health::Report;
use super::{Health, Metrics};
use anyhow::{Context, Result};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::get};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Serves /healthz, /livez and /readyz; returns once the socket listens.
pub async fn serve_health(
    address: SocketAddr,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
) -> Result<()> {
    let healthz = {
        let (health, metrics) = (health.clone(), metrics.clone());
        move || async move {
            let response = answer(&health, |report| report.healthy && report.node_eligible);
            metrics.proxy_healthz(response.status().as_u16());
            response
        }
    };
    let ready = health.clone();
    let livez = move || async move {
        let response = answer(&health, |report| report.healthy);
        metrics.proxy_livez(response.status().as_u16());
        response
    };
    let readyz = move || async move {
        if ready.synced() {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz));
    serve(address, router, "--healthz-bind-address").await
}

/// Serves /metrics; returns once the socket listens.
pub async fn serve_metrics(address: SocketAddr, metrics: Arc<Metrics>) -> Result<()> {
    // Many endpoints take a while to write out: not on the threads of the loop.
    let handler = move || async move {
        let encoded = tokio::task::spawn_blocking(move || metrics.encode()).await;
        match encoded.map_err(anyhow::Error::from).flatten() {
            Ok(text) => (
                [(
                    header::CONTENT_TYPE,
                    "text/plain; version=0.0.4; charset=utf-8",
                )],
                text,
            )
                .into_response(),
            Err(error) => {
                (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")).into_response()
            }
        }
    };
    serve(
        address,
        Router::new().route("/metrics", get(handler)),
        "--metrics-bind-address",
    )
    .await
}

fn answer(health: &Health, good: impl FnOnce(&Report) -> bool) -> Response {
    let report = health.report();
    let status = if good(&report) {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let headers = [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, Json(report)).into_response()
}

/// Connections of one endpoint at a time; further ones are closed at once.
const CONNECTIONS_MAX: usize = 256;

/// How long a connection may last: probes and scrapes connect anew.
const CONNECTION_MAX: Duration = Duration::from_secs(10);

async fn serve(address: SocketAddr, router: Router, flag: &str) -> Result<()> {
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("listening on {address}: choose another with {flag} (kube-proxy may still run)")
    })?;
    tokio::spawn(async move {
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Out of descriptors, most likely: others close in the meantime.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let Ok(permit) = room.clone().try_acquire_owned() else {
                continue;
            };
            let service = TowerToHyperService::new(router.clone());
            tokio::spawn(async move {
                let _permit = permit;
                let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                // A client that goes away in the middle is its own business.
                let _ = tokio::time::timeout(CONNECTION_MAX, serving).await;
            });
        }
    });
    Ok(())
}
