"""Video input: probe a file, choose frames by time, decode them to RGB. Knows nothing of models."""

from wq_cli.video.clip import Clip, VideoInfo
from wq_cli.video.read import probe, read
from wq_cli.video.source import is_web_address

__all__ = ["Clip", "VideoInfo", "is_web_address", "probe", "read"]
