//! The runtime's event stream (`GetContainerEvents`): containerd has it from 1.7 on.
//!
//! Events may come late, twice, or be for what is gone already: they are hints.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures::{Stream, StreamExt as _, stream::BoxStream};
use jiff::Timestamp;
use proto::cri::v1 as api;

use super::{Call, Error, convert};
use crate::types::id::{ContainerId, PodUid};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeEvent {
    /// A container, or a sandbox by its id.
    pub container: ContainerId,
    pub kind: EventKind,
    /// When the runtime made the event; none where it does not say.
    pub at: Option<Timestamp>,
    /// From the sandbox's status in the event; none where the runtime sent none, which it does
    /// once the sandbox is gone.
    pub uid: Option<PodUid>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Created,
    Started,
    Stopped,
    Deleted,
}

impl RuntimeEvent {
    pub(super) fn from_message(message: api::ContainerEventResponse) -> Self {
        let kind = match message.container_event_type() {
            api::ContainerEventType::ContainerCreatedEvent => EventKind::Created,
            api::ContainerEventType::ContainerStartedEvent => EventKind::Started,
            api::ContainerEventType::ContainerStoppedEvent => EventKind::Stopped,
            api::ContainerEventType::ContainerDeletedEvent => EventKind::Deleted,
        };
        Self {
            kind,
            at: convert::time(message.created_at),
            uid: message
                .pod_sandbox_status
                .and_then(|status| status.metadata)
                .and_then(|metadata| convert::present(metadata.uid))
                .map(PodUid::from),
            container: message.container_id.into(),
        }
    }
}

/// Events until the stream breaks: after an error there is nothing more. An end without an error
/// means that the runtime closed the stream.
pub struct Events(BoxStream<'static, Result<RuntimeEvent, Error>>);

impl Events {
    /// `opening` resolves with the first headers, which a runtime may send only with its first
    /// event.
    pub(super) fn new(opening: impl Future<Output = Opened> + Send + 'static) -> Self {
        let events = futures::stream::once(opening)
            .flat_map(|opened| match opened {
                Ok(response) => response.into_inner().left_stream(),
                Err(status) => futures::stream::once(async { Err(status) }).right_stream(),
            })
            .map(|message| {
                message
                    .map(RuntimeEvent::from_message)
                    .map_err(|status| Error::from_status(Call::GetContainerEvents, &status))
            });
        Self(events.boxed())
    }
}

pub(super) type Opened =
    Result<tonic::Response<tonic::Streaming<api::ContainerEventResponse>>, tonic::Status>;

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Events")
    }
}

impl Stream for Events {
    type Item = Result<RuntimeEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(context)
    }
}
