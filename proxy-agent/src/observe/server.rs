//! The HTTP endpoints.

use super::health::Report;
use super::{Health, Metrics};
use anyhow::{Context, Result};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::get};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

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
    let handler = move || async move {
        match metrics.encode() {
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

async fn serve(address: SocketAddr, router: Router, flag: &str) -> Result<()> {
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("listening on {address}: choose another with {flag} (kube-proxy may still run)")
    })?;
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%address, %error, "an HTTP endpoint ended");
        }
    });
    Ok(())
}
