"""Recording a step: forward, loss, backward and update as static graphs."""
