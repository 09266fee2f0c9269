"""What a learner is told when their records cannot be kept: one sentence per trouble, in both languages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lessons.text import Lang

NOTICES: Mapping[str, dict[Lang, str]] = MappingProxyType(
    {
        "damaged": {
            "en": "The file with your progress was damaged; it was set aside as {name} and a new one has begun.",
            "zh": "保存学习进度的文件已损坏：它被另存为 {name}，现在起使用一个新文件。",
        },
        "full": {
            "en": "The disk is full, so what you do from now on is kept only until the lab stops; "
            "free some space and restart.",
            "zh": "磁盘已满，从现在起的学习记录只保留到实验室关闭为止；请腾出空间后重新启动。",
        },
        "unwritable": {
            "en": "The folder {name} cannot be written, so your progress is kept only until the lab stops; "
            "set TOKEN_BY_TOKEN_HOME to a folder you can write to and restart.",
            "zh": "无法写入文件夹 {name}，学习进度只保留到实验室关闭为止；"
            "请把 TOKEN_BY_TOKEN_HOME 设为可写的文件夹后重新启动。",
        },
        "busy": {
            "en": "Another program has locked {name}, so your progress is kept only until the lab stops; "
            "close that program and restart.",
            "zh": "文件 {name} 被其他程序锁住，学习进度只保留到实验室关闭为止；请关闭该程序后重新启动。",
        },
        "unreachable": {
            "en": "The database {name} cannot be used, so your progress is kept only until the lab stops; "
            "check DATABASE_URL and restart.",
            "zh": "无法使用数据库 {name}，学习进度只保留到实验室关闭为止；请检查 DATABASE_URL 后重新启动。",
        },
        "newer": {
            "en": "The file {name} was written by a newer version of the lab, so your progress is kept only until "
            "the lab stops; update the lab and restart.",
            "zh": "文件 {name} 由更新版本的实验室写成，学习进度只保留到实验室关闭为止；请升级实验室后重新启动。",
        },
    }
)
