"""Video input: probe a file, choose frames by time, decode them to RGB. Knows nothing of models."""

from wq_cli.video.clip import Clip, VideoInfo
from wq_cli.video.read import probe, read

__all__ = ["Clip", "VideoInfo", "probe", "read"]
