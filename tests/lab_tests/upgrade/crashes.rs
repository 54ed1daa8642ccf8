//! Agents that die at any moment of a publish or a change.

use crate::world::{SIZES, TCP, World, pins, sizes_with, two_nodes, web, web_slice};
use anyhow::{Result, ensure};
use lab::{other_fairlead, story};
use std::time::{Duration, Instant};

#[test]
fn kills_at_any_moment_of_the_change_are_missed_by_nobody() {
    kill_at_random(40);
}

#[test]
#[ignore = "takes minutes: cargo xtask test --tier lab --long"]
fn a_thousand_kills_at_any_moment_are_missed_by_nobody() {
    kill_at_random(1000);
}

/// K82
fn kill_at_random(kills: usize) {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        world.start(&SIZES)?;
        let (loads, sockets) = (world.loads()?, world.sockets()?);
        let other = other_fairlead()?;
        // How long a start takes on this machine, by which the kills are spread.
        let started = Instant::now();
        world.n1.kill_agent()?;
        world.n1.agent_program(Some(other.clone()));
        world.start(&SIZES)?;
        let whole = started.elapsed();
        let mut seed = u64::from(std::process::id());
        for round in 0..kills {
            world.n1.kill_agent()?;
            let foreign = round % 3 != 0;
            world.n1.agent_program(foreign.then(|| other.clone()));
            let sizes = ["64", "128", "1024"][round % 3];
            world.n1.agent_flags(sizes_with("--backends-max", sizes));
            world.n1.start_agent()?;
            // xorshift64 (Marsaglia 2003).
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            std::thread::sleep(whole.mul_f64((seed % 1000) as f64 / 1000.0));
        }
        world.n1.kill_agent()?;
        for program in [Some(other), None] {
            world.n1.agent_program(program);
            world.start(&SIZES)?;
            sockets.go_on()?;
            world.n1.kill_agent()?;
        }
        loads.none_failed().map(drop)
    });
}

/// Runs the agent that dies before its nth write, for the given n; whether it lived.
fn run_until_it_dies(world: &World<'_>, point: usize) -> Result<bool> {
    world
        .n1
        .agent_environment(&[("FAIRLEAD_TEST_DIE_AT", point.to_string())]);
    world.n1.start_agent()?;
    let lives = world.lab.within(Duration::from_secs(20), || {
        if world.n1.agent_has_ended()? {
            return Ok(false);
        }
        let answer = world
            .n1
            .http_get(&format!("http://{}/readyz", lab::HEALTHZ))?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(true)
    })?;
    world.n1.kill_agent()?;
    Ok(lives)
}

#[test]
fn a_crash_between_any_two_writes_leaves_every_service_working() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        world.n1.agent_program(Some(other_fairlead()?));
        world.start(&SIZES)?;
        let loads = world.loads()?;
        world.n1.kill_agent()?;
        let [b1, b2] = &world.backends;
        let mut point = 0;
        loop {
            point += 1;
            ensure!(point < 200, "it never publishes");
            // Something to publish each time: endpoints, a Service that comes, one that goes.
            let slice = web_slice("web");
            lab.apply(&match point % 3 {
                0 => slice.ready_endpoints([b1, b2]),
                1 => slice.ready_endpoints([b1]),
                _ => slice.ready_endpoints([b2]),
            })?;
            let (comes, goes) = (point % 2, 1 - point % 2);
            lab.apply(&web(
                &format!("more-{comes}"),
                &format!("10.96.13.{}", 10 + comes),
            ))?;
            lab.apply(&web_slice(&format!("more-{comes}")).ready_endpoints([b1]))?;
            if point > 1 {
                lab.delete(&web(&format!("more-{goes}"), ""))?;
                lab.delete(&web_slice(&format!("more-{goes}")))?;
            }
            let lived = run_until_it_dies(&world, point)?;
            world.client.many_tcp(TCP, 10)?.none_failed()?;
            if lived {
                break;
            }
        }
        ensure!(point > 15, "only {point} writes: what was tested?");
        world.n1.agent_environment(&[]);
        world.start(&SIZES)?;
        loads.none_failed().map(drop)
    });
}

#[test]
fn a_crash_during_the_change_is_finished_by_the_next_start() {
    crash_during_the_change(4);
}

#[test]
#[ignore = "takes a minute: cargo xtask test --tier lab --long"]
fn a_crash_at_every_single_step_of_the_change_is_finished_by_the_next_start() {
    crash_during_the_change(1);
}

/// Crashes while maps are made, and then at every `stride`th step of the change.
fn crash_during_the_change(stride: usize) {
    const COARSE: usize = 30;
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        let other = other_fairlead()?;
        world.start(&SIZES)?;
        let (loads, sockets) = (world.loads()?, world.sockets()?);
        world.n1.kill_agent()?;
        let (mut point, mut step, mut crashes) = (1, COARSE, 0);
        loop {
            world.n1.agent_program(Some(other.clone()));
            world.n1.agent_flags(SIZES);
            if run_until_it_dies(&world, point)? {
                break;
            }
            let changing = !pins(&world.n1.pins())?.contains("next");
            world.client.many_tcp(TCP, 10)?.none_failed()?;
            // Back to our own layout, whichever of the two is in force now.
            world.n1.agent_environment(&[]);
            world.n1.agent_program(None);
            world.start(&SIZES)?;
            sockets.go_on()?;
            world.n1.kill_agent()?;
            if changing && step == COARSE {
                // Its first steps were passed over.
                (point, step) = (point - COARSE, stride);
            }
            crashes += usize::from(changing);
            point += step;
        }
        ensure!(
            crashes * stride >= 25,
            "only {crashes} crashes during the change"
        );
        world.n1.agent_environment(&[]);
        world.n1.agent_program(None);
        world.start(&SIZES)?;
        loads.none_failed().map(drop)
    });
}
