"""The operator's command groups, and which function each command is."""

import typer

from pubswap_client.operator import ending, members, runs, viewers
from pubswap_client.operator.exporting import export, verify

run_commands = typer.Typer(help="Create, watch and move runs.", no_args_is_help=True)
run_commands.command("create")(runs.create)
run_commands.command("list")(runs.list_runs)
run_commands.command("show")(runs.show)
run_commands.command("log")(runs.log)
run_commands.command("set")(runs.set_)
run_commands.command("start")(runs.start)
run_commands.command("pause")(runs.pause)
run_commands.command("resume")(runs.resume)
run_commands.command("cancel")(ending.cancel)
run_commands.command("archive")(ending.archive)
run_commands.command("delete")(ending.delete)
run_commands.command("exclude")(ending.exclude)
run_commands.command("rollback")(ending.rollback)
run_commands.command("export")(export)

export_commands = typer.Typer(help="Check what was exported.", no_args_is_help=True)
export_commands.command("verify")(verify)

member_commands = typer.Typer(help="See, suspend and revoke members.", no_args_is_help=True)
member_commands.command("list")(members.list_members)
member_commands.command("suspend")(members.suspend)
member_commands.command("reinstate")(members.reinstate)
member_commands.command("revoke")(ending.revoke)
member_commands.command("reissue")(members.reissue)
member_commands.command("certificate")(members.certificate)

viewer_commands = typer.Typer(help="Let people look at the dashboard.", no_args_is_help=True)
viewer_commands.command("add")(viewers.add)
viewer_commands.command("list")(viewers.list_viewers)
viewer_commands.command("remove")(viewers.remove)
