#!/bin/sh
# A compiler that is at work when the signal comes: asked for a file, it has its parent signalled.
case " $* " in
*" -o "*)
    kill -"$FAULT_SIGNAL" "$PPID"
    # As g++ waits for cc1plus.
    sleep 1000 &
    wait
    ;;
*)
    exec g++ "$@"
    ;;
esac
