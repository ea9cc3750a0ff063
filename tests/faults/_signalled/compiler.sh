#!/bin/sh
# A compiler that is at work when the signal comes: asked for a file, it has its parent signalled.
case " $* " in
*" -o "*)
    if [ "$FAULT_SIGNAL" = 2 ]; then
        kill -2 "-$FAULT_GROUP" # Ctrl-C: everybody in the foreground
    else
        kill -"$FAULT_SIGNAL" "$PPID"
    fi
    # As g++ waits for cc1plus.
    sleep 1000 &
    wait
    ;;
*)
    exec g++ "$@"
    ;;
esac
