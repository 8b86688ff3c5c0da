"""The metadata of the cluster on this broker: the image, who decides, and the way of commands to who does."""
