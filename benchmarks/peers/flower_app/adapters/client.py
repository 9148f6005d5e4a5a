"""A client that sends a given update instead of training."""

from pathlib import Path

import numpy as np
from coordination.payload import tensors
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Count the received bytes, and reply with this client's numbers."""
    received = sum(array.numpy().nbytes for array in message.content["arrays"].values())
    folder, index = Path(context.run_config["folder"]), context.node_config["index"]
    numbers = np.load(folder / f"update-{index}.npy")
    views = tensors(numbers, context.run_config["megabytes"])
    update = ArrayRecord({name: Array(view) for name, view in views.items()})
    metrics = {"num-examples": 1, "received": received, "sent": numbers.nbytes}
    content = RecordDict({"arrays": update, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=message)
