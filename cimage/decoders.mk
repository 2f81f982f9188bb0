# What the library needs to decode files. Makefiles, tools/setup.sh and python/hatch_build.py read these lines.
DECODER_SOURCES = codecs.c jpeg.c png.c webp.c
DECODER_HEADERS = stdio.h jpeglib.h png.h libdeflate.h webp/demux.h
DECODER_LIBRARIES = -ljpeg -lpng16 -lz -ldeflate -lwebpdemux -lwebp
DECODER_PACKAGES = libjpeg-dev libpng-dev libdeflate-dev libwebp-dev
