//! `fairlead status --verify` takes its lists from the API server, with the
//! agent's rights.

use crate::space::selecting;
use crate::world::{RECONNECT, story};
use anyhow::{Context, Result, ensure};
use lab::{Node, eventually};

fn is_content(node: &Node) -> Result<()> {
    let said = node.verify()?;
    ensure!(said.code == 0, "{}: {said:?}", node.name());
    Ok(())
}

#[test]
fn what_an_agent_has_missed_is_a_difference_until_it_knows() {
    story("verify", |world, space| {
        for name in ["n1", "n2", "n3"] {
            is_content(world.node(name))?;
        }
        let n1 = world.node("n1");
        n1.pause_agent()?;
        let to = space.create(&selecting("web"))?.v4(80)?;
        space.run("web", "web", &world.b1)?;
        let said = eventually(RECONNECT, || {
            let said = n1.verify()?;
            let missing = format!("frontends: {to}/TCP for clients on this node: wanted ");
            let line = said.lines.iter().any(|it| it.starts_with(&missing));
            ensure!(line && said.code == 1, "no line for {to}: {said:?}");
            Ok(said)
        })?;
        ensure!(said.errors.is_empty(), "{said:?}");
        n1.resume_agent()?;
        world.soon("the agent knows", || world.tcp(&to)?.answered_by("b1"))?;
        is_content(n1).context("once it knows")
    });
}
