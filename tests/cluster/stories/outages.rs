//! API servers and agents that go and come back (semantics 34 and 35).

use crate::space::{Space, bare, by_hand};
use crate::world::{RECONNECT, World, story, tell};
use anyhow::{Result, ensure};
use control_plane::{API_SERVER, API_SERVER_V6, NO_API_SERVER, SECOND_API_SERVER};
use control_plane::{Api, Kind};
use lab::manifests::Manifest;
use lab::{Peer, Transport};
use serde_json::json;

/// A Service with this endpoint, which the client reaches; its address.
fn reached(world: &World, space: &Space<'_>, name: &str, backend: &Peer) -> Result<String> {
    let to = space.create(&bare(name))?.v4(80)?;
    space.create(&by_hand(name).ready_endpoints([backend]))?;
    world.soon_only("before the outage", &to, &[backend.name()])?;
    Ok(to)
}

/// How often n1's agent has logged this.
fn logged(world: &World, text: &str) -> Result<usize> {
    let log = std::fs::read_to_string(world.node("n1").log())?;
    Ok(log.lines().filter(|line| line.contains(text)).count())
}

#[test]
fn connections_go_on_while_the_api_server_is_away_and_later_changes_are_followed() {
    story("restart", |world, space| {
        let to = reached(world, space, "web", &world.b1)?;
        let held = world.client.hold_tcp(&to)?;
        let load = world.node("n1").host().load(Transport::Tcp, &to, 100)?;
        let unanswered = logged(world, "API server does not answer")?;
        world.plane.kill_api_server()?;
        world.within(RECONNECT, "the agent noticed", || {
            let now = logged(world, "API server does not answer")?;
            ensure!(now > unanswered, "it has not");
            Ok(())
        })?;
        world.client.many_tcp(&to, 50)?.only_by(&["b1"])?;
        world.start_api_server()?;
        space.replace(&by_hand("web").ready_endpoints([&world.b2]))?;
        world.within(RECONNECT, "first change after the restart", || {
            world.only(&to, &["b2"])
        })?;
        space.replace(&by_hand("web").ready_endpoints([&world.b3]))?;
        world.soon_only("next change after the restart", &to, &["b3"])?;
        load.stop()?.by_none_but(&["b1", "b2", "b3"])?;
        held.talk("still here?")?.answered_by("b1")
    });
}

#[test]
fn what_changed_behind_a_watch_that_cannot_go_on_is_made_up_for() {
    // The answer to the agent's watch is 410: its revision is compacted away,
    // and a new API server remembers none of the events. It must not get them
    // by the old connection, so that is broken before they happen.
    story("compacted", |world, space| {
        let stays = reached(world, space, "stays", &world.b1)?;
        let goes = reached(world, space, "goes", &world.b1)?;
        let empties = reached(world, space, "empties", &world.b1)?;
        let (complete, expired) = ("list is complete", "too old resource version");
        let lists = logged(world, complete)?;
        let expiries = logged(world, expired)?;
        world.node("n1").pause_agent()?;
        world.restart_api_server()?;
        space.delete_service("goes")?;
        space.delete_slice("empties")?;
        space.replace(&by_hand("stays").ready_endpoints([&world.b2]))?;
        let comes = space.create(&bare("comes"))?.v4(80)?;
        space.create(&by_hand("comes").ready_endpoints([&world.b3]))?;
        world.plane.forget_history()?;
        world.restart_api_server()?;
        // What was changed is in force for all but n1.
        world.client.many_tcp(&goes, 20)?.only_by(&["b1"])?;
        world.node("n1").resume_agent()?;
        world.within(RECONNECT, "caught up: change", || {
            world.only(&stays, &["b2"])
        })?;
        world.within(RECONNECT, "caught up: new Service", || {
            world.only(&comes, &["b3"])
        })?;
        world.within(RECONNECT, "caught up: deleted Service", || {
            world.tcp(&goes)?.refused()
        })?;
        world.within(RECONNECT, "caught up: deleted slice", || {
            world.tcp(&empties)?.refused()
        })?;
        ensure!(logged(world, expired)? > expiries, "no watch expired");
        ensure!(
            logged(world, complete)? >= lists + 2,
            "no new lists of Services and slices"
        );
        space.replace(&by_hand("stays").ready_endpoints([&world.b3]))?;
        world.soon_only("next change", &stays, &["b3"])
    });
}

#[test]
fn what_was_deleted_while_the_agent_was_away_is_gone_after_its_start() {
    story("away", |world, space| {
        let goes = reached(world, space, "goes", &world.b1)?;
        let stays = reached(world, space, "stays", &world.b1)?;
        world.node("n1").kill_agent()?;
        space.delete_service("goes")?;
        space.delete_slice("goes")?;
        space.replace(&by_hand("stays").ready_endpoints([&world.b2]))?;
        world.client.many_tcp(&goes, 20)?.only_by(&["b1"])?;
        world.node("n1").start_agent()?;
        world.within(RECONNECT, "deleted meanwhile", || {
            world.tcp(&goes)?.refused()
        })?;
        world.within(RECONNECT, "changed meanwhile", || {
            world.only(&stays, &["b2"])
        })
    });
}

#[test]
fn an_agent_that_starts_without_an_api_server_leaves_all_as_it_is_until_there_is_one() {
    story("start-alone", |world, space| {
        let web = reached(world, space, "web", &world.b1)?;
        let goes = reached(world, space, "goes", &world.b1)?;
        let held = world.client.hold_tcp(&web)?;
        let n1 = world.node("n1");
        n1.kill_agent()?;
        space.delete_service("goes")?;
        world.plane.kill_api_server()?;
        let load = n1.host().load(Transport::Tcp, &web, 100)?;
        let unanswered = logged(world, "API server does not answer")?;
        n1.start_agent()?;
        n1.wait_healthy()?;
        world.within(RECONNECT, "the agent has tried twice", || {
            let now = logged(world, "API server does not answer")?;
            ensure!(now >= unanswered + 2, "it has not");
            Ok(())
        })?;
        for to in [&web, &goes] {
            world.client.many_tcp(to, 50)?.only_by(&["b1"])?;
        }
        held.talk("still here?")?.answered_by("b1")?;
        held.peer_name_is(&web)?;
        world.start_api_server()?;
        space.replace(&by_hand("web").ready_endpoints([&world.b2]))?;
        world.within(RECONNECT, "the API server appeared: change", || {
            world.only(&web, &["b2"])
        })?;
        world.within(RECONNECT, "the API server appeared: deletion", || {
            world.tcp(&goes)?.refused()
        })?;
        load.stop()?.by_none_but(&["b1", "b2"])?;
        held.talk("still here?")?.answered_by("b1")
    });
}

#[test]
fn of_several_api_servers_one_that_answers_is_used() {
    // K70. It also shows that the API may be reached by IPv6.
    story("second-server", |world, space| {
        let to = reached(world, space, "web", &world.b1)?;
        let n1 = world.node("n1");
        n1.kill_agent()?;
        space.replace(&by_hand("web").ready_endpoints([&world.b2]))?;
        world.agent_reads("n1", &[NO_API_SERVER, API_SERVER_V6])?;
        n1.start_agent()?;
        world.within(RECONNECT, "second of two addresses", || {
            world.only(&to, &["b2"])
        })?;
        space.replace(&by_hand("web").ready_endpoints([&world.b3]))?;
        world.soon_only("a change seen through the second", &to, &["b3"])?;
        // The next story's agent reads the kubeconfig's server again.
        n1.terminate_agent()
    });
}

#[test]
fn an_api_server_that_hangs_is_left_for_another() {
    // K70: its connections stay open, but nothing comes any more.
    story("hangs", |world, space| {
        let to = reached(world, space, "web", &world.b1)?;
        let _second = world.plane.start_second_api_server()?;
        let admin = world.plane.kubeconfig("admin");
        let api = Api::of_server(world.plane.host(), &admin, SECOND_API_SERVER)?;
        let n1 = world.node("n1");
        n1.kill_agent()?;
        world.agent_reads("n1", &[API_SERVER, SECOND_API_SERVER])?;
        n1.start_agent()?;
        space.replace(&by_hand("web").ready_endpoints([&world.b2]))?;
        world.within(RECONNECT, "through the first server", || {
            world.only(&to, &["b2"])
        })?;
        let endpoints = by_hand("web").ready_endpoints([&world.b3]).to_json();
        let patch = json!({ "endpoints": endpoints["endpoints"] });
        world.within(RECONNECT, "the second server is there", || {
            api.list(Kind::Slice, space.name())
        })?;
        world.plane.pause_api_server()?;
        api.patch(Kind::Slice, space.name(), "web", &patch)?;
        let begun = api.last_write();
        lab::eventually(RECONNECT, || world.only(&to, &["b3"]))?;
        tell("through the second server", begun);
        world.plane.resume_api_server()?;
        // The next story's agent reads the kubeconfig's server again.
        n1.terminate_agent()
    });
}
